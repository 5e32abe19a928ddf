"""Implement `workbench parity`: train on several meshes from the same weights, and find the first different tensor."""

import math
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzers import parity
from analyzers.errors import Exit
from analyzers.parity.model import NamedRun
from analyzers.parity.report import write_runs
from analyzers.rooms import limited_to
from analyzers.run import discover
from analyzers.store import Options
from analyzers.words import quantity
from trainer.config import JobConfig, load
from trainer.config.mesh import EXPERT, KEYS, REPLICATE, SHARD
from workbench.command_options.options import FailOn, ShowOptions
from workbench.commands.output import deliver
from workbench.console import note
from workbench.errors import UsageProblem, trainer_errors_as_ours
from workbench.launch.own_folder import refuse_links
from workbench.launch.plan import Plan, Request, plan, trainer_arguments
from workbench.launch.run import diagnose, launch
from workbench.progress import shown_progress

Start = Callable[[Plan], str]
"""A function that runs a job to its end and returns how it ended: completed, failed or interrupted."""
SEED = 42
STEPS = 5
_SEED_FOLDER = "seed"
_ALIKE = (
    *("--debug.deterministic", "--metrics.log_freq", "1"),
    *("--profiling.no_enable_profiling", "--profiling.no_enable_memory_snapshot"),
)
"""The trainer flags that all runs have, so that they differ only in the mesh."""
BATCH = "training.local_batch_size"


@dataclass(frozen=True)
class Variant:
    """One of the runs to compare, from an option `--run`; `text` is the text of this option.

    `degrees` is {mesh dimension: number of ranks}. `flags` has the trainer flags of this run only.
    """

    text: str
    degrees: dict[str, int]
    flags: tuple[str, ...]

    @property
    def ranks(self) -> int:
        """The number of processes of the run: the product of all degrees; the expert degree adds no ranks."""
        return math.prod(degree for name, degree in self.degrees.items() if name != EXPERT)

    @property
    def data_parallel(self) -> int:
        return self.degrees[REPLICATE] * self.degrees[SHARD]

    def sets(self, key: str) -> bool:
        return f"--{key}" in self.flags


@dataclass(frozen=True)
class Comparison:
    """The options of `workbench parity`: the training to run, and its variants to compare.

    All runs write below `folder`. With `values`, sums over tensors are recorded, to find the first tensor that differs.
    """

    request: Request
    variants: Sequence[Variant]
    folder: Path
    steps: int | None = None
    values: bool = True


def variant(text: str) -> Variant:
    """Parse the text of one `--run` option, such as `dp_replicate=2,dp_shard=2,tp=2` or `debug.seed=3`.

    Raises:
        UsageProblem: A part does not have the form key=value, or a degree is not a positive integer.
    """
    degrees, flags = dict.fromkeys(KEYS, 1), list[str]()
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (side.strip() for side in part.partition("="))
        if key in KEYS and value.isdecimal() and int(value) > 0:
            degrees[key] = int(value)
        elif "." in key and equals and key not in KEYS:
            flags += flag(key, value)
        else:
            hint = f"write {', '.join(f'{name}=N' for name in KEYS)} or section.key=value, separated by commas"
            raise UsageProblem(f"--run {text!r}: {part!r} is no setting of a run", hint)
    return Variant(text or f"{SHARD}=1", degrees, tuple(flags))


def flag(key: str, value: str) -> tuple[str, ...]:
    """Return the trainer flag that sets a key to a value, as words of a command line.

    The words are `--KEY VALUE`. For true and false, the flag is `--KEY` or `--SECTION.no_NAME`, without a value.
    """
    section, _, name = key.rpartition(".")
    switches = {"true": (f"--{key}",), "false": (f"--{section}.no_{name}",)}
    return switches.get(value.lower(), (f"--{key}", value))


def compare_meshes(comparison: Comparison, start: Start | None = None, tolerance: float | None = None) -> bool:
    """Train on all meshes, one after the other; return whether all runs succeeded, so that they can be compared.

    `start` runs a job and returns its status; None means our launcher. `tolerance` is the largest relative difference
    that is allowed; None allows the differences that rounding can cause.

    Raises:
        UsageProblem: There are fewer than two runs, or the configuration does not fit a mesh; nothing was started.
    """
    if len(comparison.variants) < 2:
        raise UsageProblem("parity needs two runs at least", "give --run for each mesh, such as --run tp=2")
    base = configuration(comparison.request)
    runs = [
        NamedRun(one.text, comparison.folder / f"run_{number}") for number, one in enumerate(comparison.variants, 1)
    ]
    jobs = [_seed_job(comparison)] + [
        plan(_request_of(comparison, base, one, Path(run.folder)))
        for one, run in zip(comparison.variants, runs, strict=True)
    ]
    for job in jobs:
        refuse_links(job.folder, with_itself=True)
    # A seed checkpoint of an earlier comparison may be of another model.
    shutil.rmtree(comparison.folder / _SEED_FOLDER / "checkpoint", ignore_errors=True)
    for job, what in zip(jobs, ("the seed checkpoint", *(run.name for run in runs)), strict=True):
        note(f"{what} on {quantity(job.nproc, 'rank')}; output in {job.folder}")
        if (start or start_job)(job) != "completed":
            diagnose(job)
            return False
    write_runs(comparison.folder, runs, tolerance_of(base) if tolerance is None else tolerance)
    return True


def start_job(job: Plan) -> str:
    """Run a job with our launcher to its end, and return its status, such as `completed`."""
    return launch(job).status


def tolerance_of(config: JobConfig) -> float:
    """Return the largest relative difference that rounding can cause: 2e-2 with bfloat16, less with float32 alone."""
    training = config.training
    return parity.TOLERANCE if "bfloat16" not in (training.mixed_precision_param, training.dtype) else 2e-2


def configuration(request: Request) -> JobConfig:
    """Return the configuration that all runs share.

    Raises:
        UsageProblem: A key or a value is wrong.
    """
    with trainer_errors_as_ours():
        return load(None, trainer_arguments(request))


def _seed_job(comparison: Comparison) -> Plan:
    """Return the plan of a job with one rank that saves the initial weights, from which all runs start."""
    ones = (part for name in KEYS for part in (f"--parallelism.{KEYS[name]}", "1"))
    saving = ("--checkpoint.enable", "--checkpoint.create_seed_checkpoint", "--checkpoint.folder", "checkpoint")
    folder = ("--job.dump_folder", str(comparison.folder / _SEED_FOLDER))
    return plan(_with_overrides(comparison.request, 1, (*seed(comparison), *ones, *saving, *folder)))


def _request_of(comparison: Comparison, base: JobConfig, one: Variant, folder: Path) -> Request:
    """Return the launch request of run `one`, which writes to `folder`; `base` is the shared configuration."""
    mesh = (part for name, degree in one.degrees.items() for part in (f"--parallelism.{KEYS[name]}", str(degree)))
    start = comparison.folder / _SEED_FOLDER / "checkpoint" / "step-0"
    # A checkpoint in the folder of the run would go before the seed checkpoint: there is none of this name.
    own_folder = ("--checkpoint.folder", f"none-{secrets.token_hex(4)}")
    loading = (
        "--checkpoint.enable",
        "--checkpoint.load_only",
        "--checkpoint.initial_load_path",
        str(start),
        *own_folder,
    )
    steps = comparison.steps or min(base.training.steps, STEPS)
    values = ("--debug.record_values",) if comparison.values else ()
    batch = () if one.sets(BATCH) else (f"--{BATCH}", str(_local_batch(comparison, base, one)))
    own = (*seed(comparison), *_ALIKE, *values, "--training.steps", str(steps), *mesh, *batch, *loading)
    # The run's own flags come last, so that they replace those of all runs.
    return _with_overrides(comparison.request, one.ranks, (*own, "--job.dump_folder", str(folder), *one.flags))


def seed(comparison: Comparison) -> tuple[str, ...]:
    return () if configuration(comparison.request).debug.seed is not None else ("--debug.seed", str(SEED))


def _local_batch(comparison: Comparison, base: JobConfig, one: Variant) -> int:
    """Return the local batch size (sequences per rank) with which run `one` has the same global batch as the first run.

    So all runs train on the same sequences in each step.

    Raises:
        UsageProblem: The sequences of a step cannot be divided evenly among the ranks.
    """
    training, first = base.training, comparison.variants[0].data_parallel
    if training.global_batch_size > 0 or one.data_parallel == first:
        return training.local_batch_size
    sequences = training.local_batch_size * first
    if sequences % one.data_parallel:
        raise UsageProblem(
            f"--run {one.text!r}: {sequences} sequences of a step cannot be divided among {one.data_parallel} ranks",
            f"give a {BATCH} of which {one.data_parallel} is a divisor, or keep dp_replicate x dp_shard at {first}",
        )
    return sequences // one.data_parallel


def _with_overrides(request: Request, ranks: int, overrides: tuple[str, ...]) -> Request:
    """Return a copy of the launch request with `ranks` ranks and additional trainer flags."""
    return Request(
        config=request.config,
        module=request.module,
        nproc=ranks,
        overrides=(*request.overrides, *overrides),
        watch=False,
    )


def bisect(a: Path, b: Path, show: ShowOptions, tolerance: float | None, fail_on: FailOn | None) -> Exit:
    """Compare run `b` with run `a`, open an app or print the report, and return the exit status.

    `tolerance` is the largest relative difference that is allowed. None allows the differences that rounding can cause
    in each tensor's dtype.
    """
    options, runs = Options(), (discover(a), discover(b))
    if show.interactive and not fail_on:
        from workbench.tui.app import open_app
        from workbench.tui.subject import bisection

        open_app(bisection(*runs, options, tolerance))
        return Exit.OK
    with shown_progress(options, *runs) as options, limited_to(options, *runs):
        report = parity.bisect(*runs, options, tolerance)
    if show.web:
        from workbench.web.served_run import ServedRun
        from workbench.web.server import serve_view

        serve_view(ServedRun(runs[0], options, report, runs[1]), "bisect")
        return Exit.OK
    return deliver(report, show, runs[0], fail_on)
