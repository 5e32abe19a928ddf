"""Measure on a machine with one CUDA device what a CPU cannot show: python -m benchmarks.gpu [--out DIR].

Each case runs in a separate process with a time limit, so that a failure costs one row. After each case the results are
written again: table.md, table.json, and fixtures.tar.gz with small snapshots, dumps, traces and logs. `--resume`
continues an interrupted run; `--only NAME` selects cases by a part of their names. All cases together take at most
`--minutes`.

Without a device, `--device cpu` runs the cases that a CPU supports. It needs torch, numpy, pandas and msgspec; if the
last two are missing, put wheels beside the checkout: pip install --no-index --find-links WHEELS msgspec pandas.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryFile

from benchmarks.gpu import collectives, machine, memory, out_of_memory, profiles, training
from benchmarks.gpu.case import ROOT, Case, CheckFailedError, Measured, Place, Row, State, environment_of

SECTIONS = (machine, out_of_memory, memory, collectives, profiles, training)
"""The sections of cases, the most important first, because the time may not be enough for all."""
LARGEST_ARCHIVE = 15 << 20


def all_cases() -> list[Case]:
    """Return every case, in order."""
    return [case for section in SECTIONS for case in section.cases()]


def run_case(case: Case, device: str, out: Path, seconds: float) -> Row:
    """Run a case in a separate process, and end all processes that it started."""
    if case.needs_cuda and device != "cuda":
        return Row(case.section, case.name, State.SKIPPED, 0.0, {}, "needs a CUDA device")
    result = out / "rows" / f"{case.key}.json"
    result.unlink(missing_ok=True)
    place = Place(device, out / "work" / case.key, out / "fixtures" / case.key)
    started = time.monotonic()
    with TemporaryFile("w+", errors="replace") as output:
        words = ("--here", "--only", case.key, "--device", device, "--out", str(out))
        child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu", *words],
            stdout=output, stderr=output, cwd=ROOT, env=environment_of(place) | dict(case.environment),
            start_new_session=True,
        )  # fmt: skip
        timed_out = False
        try:
            child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        output.seek(0)
        tail = output.read()[-1500:]
    took = round(time.monotonic() - started, 1)
    if result.is_file():
        return Row(**json.loads(result.read_text(encoding="utf-8")) | {"seconds": took})
    state = State.TIMEOUT if timed_out else State.FAILED
    problem = f"not done after {seconds:.0f} s" if timed_out else f"exit code {child.returncode}"
    return Row(case.section, case.name, state, took, {"output": tail}, problem)


def run_here(key: str, device: str, out: Path) -> None:
    """Run a case in this process, write its row to OUT/rows, and end the process."""
    [case] = [case for case in all_cases() if case.key == key]
    place = Place(device, out / "work" / key, out / "fixtures" / key)
    shutil.rmtree(place.folder, ignore_errors=True)
    place.folder.mkdir(parents=True)
    started = time.monotonic()
    state, measured, problem = outcome(case, place)
    row = Row(case.section, case.name, state, round(time.monotonic() - started, 1), measured, problem)
    target = out / "rows" / f"{key}.json"
    draft = target.with_suffix(".draft")
    draft.write_text(row.as_json(), encoding="utf-8")
    draft.replace(target)
    if state is State.PASSED:
        shutil.rmtree(place.folder, ignore_errors=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a device that ran out of memory, or a process group, may not end in order


def outcome(case: Case, place: Place) -> tuple[State, Measured, str]:
    """Run a case; return its state, the measured values, and the error if it failed."""
    try:
        return State.PASSED, case.run(place), ""
    except CheckFailedError as failure:
        return State.FAILED, failure.measured, str(failure)
    except Exception as error:  # noqa: BLE001 - whatever happens is a row of the table
        problem = f"{type(error).__name__}: {error}"[:500]
        return State.FAILED, {"traceback": traceback.format_exc()[-1500:]}, problem


def run_all(cases: Sequence[Case], device: str, out: Path, minutes: float, *, resume: bool) -> list[Row]:
    """Run the cases one after the other until the time is up; the table is written after each."""
    (out / "rows").mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * minutes
    rows = []
    for case in cases:
        path = out / "rows" / f"{case.key}.json"
        earlier = Row(**json.loads(path.read_text(encoding="utf-8"))) if resume and path.is_file() else None
        left = end - time.monotonic()
        if earlier and earlier.state == State.PASSED:
            row = earlier
        elif left < 1:
            row = Row(case.section, case.name, State.NOT_RUN, 0.0, {}, "no time was left; go on with --resume")
        else:
            row = run_case(case, device, out, min(case.limit_s, left))
        path.write_text(row.as_json(), encoding="utf-8")
        rows.append(row)
        print(f"{row.state:>8}  {row.seconds:6.1f} s  {case.key}  {row.problem}", flush=True)
        write_table(rows, out)
    return rows


LONGEST = 160


def markdown(rows: Sequence[Row]) -> str:
    """Return the table with all rows, in sections."""
    states = Counter(str(row.state) for row in rows)
    lines = ["# On a device", "", ", ".join(f"{count} {state}" for state, count in states.items()), ""]
    for section, part in groupby(rows, key=lambda row: row.section):
        lines += [f"## {section}", "", "| case | state | s | measured |", "|---|---|--:|---|"]
        lines += [f"| {row.name} | {row.state} | {row.seconds:.1f} | {cell(row)} |" for row in part]
        lines.append("")
    return "\n".join(lines)


def cell(row: Row) -> str:
    """Return the text of a cell: the error, if any, and the measured values."""
    values = [
        f"{name} {shortened(value)}" for name, value in row.measured.items() if name not in ("output", "traceback")
    ]
    return "; ".join(filter(None, [f"**{escaped(row.problem)}**" if row.problem else "", *values]))


def shortened(value: object) -> str:
    """Return a value as short text that does not break a table."""
    text = value if isinstance(value, str) else json.dumps(value)
    return escaped(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def escaped(text: str) -> str:
    """Return text without characters that would end a table cell or a line."""
    return " ".join(text.split()).replace("|", "\\|")


def write_table(rows: Sequence[Row], out: Path) -> None:
    """Write the table as Markdown and as JSON."""
    (out / "table.md").write_text(markdown(rows), encoding="utf-8")
    (out / "table.json").write_text("[\n" + ",\n".join(row.as_json() for row in rows) + "\n]\n", encoding="utf-8")


def pack(out: Path) -> None:
    """Put the fixtures into an archive, small ones first, up to a size limit."""
    files = sorted(
        (path for path in (out / "fixtures").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    size = 0
    with tarfile.open(out / "fixtures.tar.gz", "w:gz") as archive:
        for path in files:
            size += path.stat().st_size
            if size <= 4 * LARGEST_ARCHIVE and (out / "fixtures.tar.gz").stat().st_size < LARGEST_ARCHIVE:
                archive.add(path, path.relative_to(out / "fixtures"))


def present_device() -> str:
    """Return the device type of this machine: `cuda` or `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Run the selected cases; the exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--out", type=Path, default=Path("outputs/gpu"))
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--here", action="store_true", help="run the only case in this process, and write its row")
    asked = parser.parse_args()
    if asked.here:
        run_here(asked.only[0], asked.device, asked.out)
    cases = [case for case in all_cases() if not asked.only or any(part in case.key for part in asked.only)]
    if asked.list:
        print("\n".join(f"{case.key}{'  (CUDA)' if case.needs_cuda else ''}" for case in cases))
        return
    device = present_device() if asked.device == "auto" else asked.device
    out = asked.out.absolute()
    rows = run_all(cases, device, out, asked.minutes, resume=asked.resume)
    pack(out)
    print(f"{out / 'table.md'}: {sum(row.state == State.PASSED for row in rows)} of {len(rows)} passed on {device}")
    sys.exit(any(row.state in (State.FAILED, State.TIMEOUT) for row in rows))


if __name__ == "__main__":
    main()
