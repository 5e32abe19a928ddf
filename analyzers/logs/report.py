"""Analyze the text logs of a run: `analyze` returns a `Report[LogsData]` that says why the job ended."""

from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

from analyzers import store
from analyzers.case.facts import EventKind
from analyzers.case.hypothesis import Case
from analyzers.columns import UnsavedColumns
from analyzers.errors import InputError
from analyzers.logs.answers.cause import find_answer
from analyzers.logs.findings.findings import make_findings, make_verdict
from analyzers.logs.loading import KINDS_READ, Logs, add, load
from analyzers.logs.model import LogsData
from analyzers.logs.reading import reader
from analyzers.logs.untracked import device_accounts, untracked_findings
from analyzers.report import Report
from analyzers.run import Artefact, Kind, Run, discover

_SCHEMA = "workbench.logs/1"


def analyze(run: Run | str | PathLike[str], options: store.Options | None = None) -> Report[LogsData]:
    """Return why a job ended, from what its ranks, its launcher and its scheduler printed.

    `run` is a log, a folder of logs such as torchrun's `--log-dir`, or the result of `analyzers.run.discover` for one.
    These kinds of logs are read, of any size: stdout and stderr of ranks (one file each, or one for all with `[rank3]:`
    before each line), torchrun's table of failures and `error.json`, Slurm's output, and kernel logs. The rules are
    fixed: the same log always gives the same answer. Printed times are taken as UTC.

    Example:
        report = analyze("slurm-1234.out")
        report.verdict.kind, report.verdict.ranks  # (LogClass.OOM, [2])
        [(event.kind, event.rank, event.line) for event in report.data.events]

    Raises:
        InputError: There is no such path, or no log there that could be read.
    """
    run = run if isinstance(run, Run) else discover(Path(run))
    if not run.of(*KINDS_READ):
        raise InputError(f"{run.root}: no text log there", "give stdout, stderr, or torchrun's log folder")
    loaded = load(run, options or store.Options())
    if all(file.problem for file in loaded.files):
        raise InputError(
            f"{run.root}: no log could be read: {loaded.files[0].problem}",
            loaded.hint or "check that it was copied whole",
        )
    answer, data = find_answer(loaded), _data_of(loaded)
    return Report(
        schema=_SCHEMA,
        inputs=loaded.inputs,
        verdict=make_verdict(answer, loaded),
        findings=[*make_findings(answer, loaded), *untracked_findings(data.memory, data.nccl)],
        data=data,
    )


def case_of(text: str) -> Case | None:
    """Return the case that the text of a log shows; None if it shows no failure.

    The text is read in this process: it must be short, and not come from a stranger.
    """
    with TemporaryDirectory() as folder:
        log = Path(folder) / "job.log"
        log.write_text(text.strip("\n") + "\n", encoding="utf-8")
        logs = Logs()
        add(logs, [Artefact(log, Kind.LOG, bytes=log.stat().st_size)], UnsavedColumns(*reader.read([log])), {})
    return find_answer(logs).case


def _data_of(logs: Logs) -> LogsData:
    """Return the data of the report: the events, and the facts that the logs show about each rank and device."""
    ranks = [logs.ranks[rank] for rank in sorted(logs.ranks)]
    return LogsData(
        world_size=logs.world_size,
        ranks=ranks,
        events=[event for event in logs.events if event.kind is not EventKind.CLUE],
        files=logs.files,
        left_out=logs.left_out,
        memory=device_accounts(logs.events, logs.nccl),
        nccl=logs.nccl,
    )
