"""Measure the cost of small files that are expensive to analyse, as a document and in every view of both apps.

    python -m benchmarks.hostile [--views] [KIND ...]

Prints a table: for each kind the size of its files, how `workbench inspect --json` ended, its processor time and the
memory of its largest process. --views adds the same for all pages of the dashboard and for the terminal app, and the
slowest view of each. The exit status is 1 if a command crashed, or took more than SECONDS of processor time or MEMORY
bytes; an answer or an error for the user is fine.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from analyzers.words import duration, size
from benchmarks.hostile.artefacts import KINDS

SECONDS = 120
"""Limit of a command's processor time; reading and analysing a small file are limited to 20 s and 40 s of it."""
MEMORY = 5 << 30
WALL_S = 900
VIEWS = ("pages", "terminal")


@dataclass(frozen=True)
class Cost:
    """How a process ended, its processor time in seconds, the memory of its largest process, and its last line."""

    status: int
    cpu_s: float
    memory: int
    said: str

    @property
    def is_fine(self) -> bool:
        """Whether the process gave an answer or an error for the user, within the limits."""
        return self.status in (0, 3) and self.cpu_s < SECONDS and self.memory < MEMORY

    def __str__(self) -> str:
        outcome = {0: "answered", 3: "refused"}.get(self.status, f"status {self.status}")
        return f"{outcome}, {self.cpu_s:.1f} s, {size(self.memory)}"


def cost_of(command: list[str]) -> Cost:
    """Run a command, and return its cost."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryDirectory() as cache:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"WORKBENCH_CACHE": cache},
        )  # fmt: skip
        with deadline(process.pid):
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    wanted = [line for line in lines if line.startswith(("error:", "slowest:"))] or lines[-1:] or [""]
    return Cost(process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss << 10, wanted[-1][:160])


@contextlib.contextmanager
def deadline(group: int) -> Iterator[None]:
    """End a process group if it is still running after WALL_S seconds."""

    def end(*_: object) -> None:
        os.killpg(group, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(WALL_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def open_views(face: str, folder: Path) -> int:
    """Open every view of a run in the app `face`, print the slowest view, and return the exit status."""
    from analyzers.errors import WorkbenchError
    from benchmarks.hostile.views import timed_views

    try:
        took = timed_views(face, folder)
    except WorkbenchError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    name, seconds = max(took.items(), key=lambda item: item[1])
    print(f"slowest: {name}, {duration(seconds)}", file=sys.stderr)
    return 0


def try_kind(name: str, faces: tuple[str, ...]) -> bool:
    """Generate the files of a kind, print their row of the table, and return whether all limits were kept."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        KINDS[name](folder)
        total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        began = time.monotonic()
        commands = {"document": [sys.executable, "-m", "workbench", "inspect", place, "--json"]}
        commands |= {face: [sys.executable, "-m", "benchmarks.hostile", "--open", face, place] for face in faces}
        costs = {what: cost_of(command) for what, command in commands.items()}
    shown = "; ".join(f"{what}: {cost}" + (f" ({cost.said})" if cost.said else "") for what, cost in costs.items())
    print(f"{name} ({size(total)}, {time.monotonic() - began:.0f} s): {shown}", flush=True)
    return all(cost.is_fine for cost in costs.values())


def main() -> int:
    """Try the kinds given on the command line, or all kinds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--views", action="store_true")
    parser.add_argument("--open", choices=VIEWS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.open:
        return open_views(asked.open, Path(asked.kinds[0]))
    if unknown := set(asked.kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    results = {name: try_kind(name, VIEWS if asked.views else ()) for name in asked.kinds or KINDS}
    failed = [name for name, is_fine in results.items() if not is_fine]
    print(json.dumps({"kinds": len(results), "beyond the limits": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
