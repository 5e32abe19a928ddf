"""Run mutated files of every format through the whole program: each must be analysed or refused, without any leak.

    python benchmarks/safety/fuzz.py [--seconds 60] [--inputs N] [--jobs 2] [--seed 0] [--keep FOLDER]
    python benchmarks/safety/fuzz.py --replay FOLDER    # one input again, with the traceback

An input is a file of a recorded run, mutated in its structure (values, keys, lines, records, fields) or byte by byte;
each kind of file is used equally often. A third of the runs are a single input. Most others are the logs, dumps or
snapshots of several ranks, all mutated, because a run of eight files takes only twice the time of one; the rest are
whole runs with one to three mutated files. A run is discovered, analysed, sometimes compared with a healthy run, and
rendered as JSON and as one of text, Markdown and HTML. Some runs are shown in the dashboard or the terminal app
instead; TOML files go through `config explain`. A failure is: an exception other than an error for the user, a reader
that crashed, a library's warning, invalid JSON, control characters or markup from a file in a document, page or screen,
more than CPU_S seconds or MEMORY bytes. Files are read in the worker's own process, because a child process for each
would cost ten times more; tests and normal use cover child processes. Prints the numbers of inputs and runs, how the
runs ended, and each failure.
"""

import argparse
import contextlib
import gc
import multiprocessing
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from analyzers import (  # noqa: E402
    cache,
    child,
    store,
)
from analyzers.errors import WorkbenchError  # noqa: E402
from benchmarks.fuzzing.formats import CONFIGURATION, FIXTURES, Files, seeds, seeds_by_kind  # noqa: E402
from benchmarks.fuzzing.invariants import (  # noqa: E402
    Leak,
    check_configuration,
    check_documents,
    check_pages,
    check_terminal,
)
from benchmarks.fuzzing.mutations import mutant, of_ranks  # noqa: E402
from workbench.command_options.options import Format  # noqa: E402

CPU_S = 20
MEMORY = 3 << 30
SINGLE_FILES, WHOLE_RUNS, PAGES, TERMINAL, COMPARED = 0.35, 0.1, 0.02, 0.0005, 0.02
"""Shares of the runs: of a single file, of whole runs, shown as pages, shown in the terminal app, and compared."""
RANKS, RANKS_OF_DUMPS, RANKS_OF_LARGE_FILES = (4, 8, 16), (16, 32, 64), (2, 4, 8)
"""How many files of one kind a run may have: more of those that are read in a millisecond. An analysis of steps costs
a tenth of a second whatever it reads, so more files a run are more files a second.
"""
DUMPS = ("collection", "error", "exit", "flight_record", "groups", "run", "stacks")
LARGE_FILES = ("memory_snapshot", "trace")
COLLECT_EVERY = 200
"""Runs after which garbage is collected: Python's own schedule costs a tenth of the time."""
SHOW_EVERY = 2000


def read_here(paths: list[Path], reader: str, target: Path, max_memory: int | None) -> None:  # noqa: ARG001
    """Read files in this process; an unexpected exception in a reader is raised here unchanged."""
    task = child.Task(reader, target, paths, MEMORY, CPU_S)
    try:
        status, message = child.perform(task)
    except MemoryError:
        status, message = child.CRASHED, b"MemoryError"
    if status != child.DONE:
        raise child.explain(child.ChildExit(status, message), task)


class TooSlow(BaseException):
    """An input takes more processor time than allowed. It is not an `Exception`, so that no handler catches it."""


def give_up(*_: object) -> None:
    raise TooSlow


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Make reading happen in this process, with limits of memory and processor time for each input, and a separate
    cache.
    """
    before, kept, handler = store.read_in_child, cache.cache_folder, signal.signal(signal.SIGPROF, give_up)
    limits = resource.getrlimit(AS)
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    store.read_in_child = read_here
    resource.setrlimit(AS, (own + MEMORY, limits[1]))
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with warnings.catch_warnings():
            # As in tests: the mean of nothing, say, shows a case that nobody thought of.
            warnings.simplefilter("error")
            yield
    finally:
        gc.unfreeze()
        gc.enable()
        store.read_in_child, cache.cache_folder = before, kept
        resource.setrlimit(AS, limits)
        signal.signal(signal.SIGPROF, handler)


AS = resource.RLIMIT_AS


def outcome(drive: Callable[[], str]) -> tuple[str, str]:
    """Run one input; return how it ended, and for a failure the source line by which failures are grouped."""
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        return drive(), ""
    except WorkbenchError:
        return "refused", ""
    except (Exception, TooSlow) as error:  # noqa: BLE001  # that is what is looked for
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
        ours = [frame for frame in frames if str(ROOT) in frame.filename and "fuzz.py" not in frame.filename]
        place = (ours or frames)[-1]
        label = f"{type(error).__name__} {Path(place.filename).name}:{place.lineno} {place.name}"
        return "failed", label + (f" {error}"[:160] if isinstance(error, Leak) else "")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def write_input(folder: Path, files: Files) -> None:
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def drive(rng: random.Random, folder: Path, files: Files) -> str:
    """Run a set of files through documents, dashboard or terminal app; return the name of the analyzer."""
    if "config.toml" in files:
        return check_configuration(folder / "config.toml")
    face = rng.random()
    if face < TERMINAL:
        return check_terminal(folder, rng)
    if face < TERMINAL + PAGES:
        return check_pages(folder)
    forms = (Format.JSON, rng.choice((Format.TEXT, Format.MARKDOWN, Format.HTML)))
    return check_documents(folder, FIXTURES / "healthy_2ranks" if rng.random() < COMPARED else None, forms)


class Inputs:
    """Generates mutated files from the files of recorded runs."""

    def __init__(self, seed: int) -> None:
        self.rng, self.sets, self.by_kind = random.Random(seed), seeds(), seeds_by_kind()

    def next(self) -> tuple[int, Files]:
        """Return the number of mutated files of the next run, and its files."""
        shape = self.rng.random()
        if shape < WHOLE_RUNS:
            return mutant(self.rng, self.rng.choice(self.sets))
        kind = self.rng.choice(sorted(self.by_kind))
        alone = shape < WHOLE_RUNS + SINGLE_FILES or kind == CONFIGURATION
        ranks = RANKS_OF_DUMPS if kind in DUMPS else RANKS_OF_LARGE_FILES if kind in LARGE_FILES else RANKS
        files = of_ranks(self.rng, self.by_kind[kind], 1 if alone else self.rng.choice(ranks))
        return len(files), files


@dataclass
class Tally:
    """Counts of the inputs, and of how they ended."""

    inputs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    @property
    def runs(self) -> int:
        return self.ends.total()

    def __str__(self) -> str:
        return f"{self.inputs} inputs in {self.runs} runs, {self.seconds:.0f} s of processor time: {dict(self.ends)}"


def attempt(source: Inputs, tally: Tally, keep: Path | None) -> None:
    """Run the next set of files, and count the result."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=fast_folder()) as home:
        folder, cache.cache_folder = Path(home) / "run", lambda: Path(home) / "cache"
        inputs, files = source.next()
        write_input(folder, files)
        end, place = outcome(lambda: drive(source.rng, folder, files))
        tally.inputs += inputs
        tally.ends[end] += 1
        if end == "failed":
            tally.failures[place] += 1
            kept = keep and keep / re.sub(r"[^\w.-]+", "-", place)[:100]
            if kept and not kept.exists():
                shutil.copytree(folder, kept)


def fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def run(seed: int, seconds: float, inputs: int, keep: Path | None = None, show: bool = False) -> Tally:
    """Run inputs until the processor time or the number of inputs is used up."""
    source, tally, began = Inputs(seed), Tally(), time.process_time()
    with prepared():
        while (spent := time.process_time() - began) < seconds and tally.inputs < inputs:
            attempt(source, tally, keep)
            if tally.runs % COLLECT_EVERY == 0:
                gc.collect()
            if tally.runs == COLLECT_EVERY:
                gc.freeze()  # what was imported by now stays
            if show and tally.runs % SHOW_EVERY == 0:
                tally.seconds = spent
                print(f"seed {seed}: {tally}; failures: {dict(tally.failures)}", flush=True)
    tally.seconds = time.process_time() - began
    return tally


def replay(folder: Path) -> str:
    """Run a kept input through documents and dashboard, and let exceptions pass."""
    [config] = list(folder.glob("config.toml")) or [None]
    if config:
        return check_configuration(config)
    room = check_documents(folder, FIXTURES / "healthy_2ranks")
    check_pages(folder)
    return room


def replay_in_terminal(folder: Path) -> str:
    """Show a kept input in the terminal app, and let exceptions pass; a configuration cannot be shown there."""
    if not (folder / "config.toml").exists():
        check_terminal(folder, random.Random(0))
    return "terminal"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor seconds of each worker")
    parser.add_argument("--inputs", type=int, default=10**9)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args()
    if given.replay:
        with prepared():
            print(replay(given.replay), replay_in_terminal(given.replay))
        return
    tasks = [
        (given.seed + 1000 * job, given.seconds, given.inputs // given.jobs, given.keep, True)
        for job in range(given.jobs)
    ]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        tally = sum(pool.starmap(run, tasks), Tally())
    print(tally)
    for place, count in tally.failures.most_common():
        print(f"{count:6d}  {place}")
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
