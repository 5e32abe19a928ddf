"""Measure what reading large artefacts costs, beside libraries that only decode them with Python's collector off.

    python -m benchmarks.core [--quick] [--rounds 3] [--only snapshots traces dumps small] [--kinds loop cuda] [--aside]

Prints the median of the processor seconds of all processes, beside those of the peer in the same rounds, and the ratio.
Peers: `pickle.load` of snapshots and dumps, gunzip and `json.loads` of traces, `orjson.loads` of dumps in JSON
(`msgspec` where orjson is not installed), with `gc.disable()`: with it on, they spend most of their time in it.
`--aside` measures only the kinds on which no reader is tuned. Exits with 1 if an aim is missed.
"""

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import many_files
from benchmarks.core import dump_files, snapshot_files, trace_files
from benchmarks.cost import measure

FILES = {"snapshots": snapshot_files, "traces": trace_files, "dumps": dump_files}
PICKLE = "import gc, pickle, sys; gc.disable(); pickle.load(open(sys.argv[1], 'rb'))"
JSON = "import gc, gzip, json, sys; gc.disable(); json.loads(gzip.open(sys.argv[1]).read())"
DUMPS = """
import gc, orjson, pickle, sys, pathlib
gc.disable()
for path in pathlib.Path(sys.argv[1]).iterdir():
    with path.open("rb") as file:
        orjson.loads(file.read()) if path.suffix else pickle.load(file)
"""
EXAMPLE = Path(__file__).parents[2] / "tests" / "fixtures" / "oom_2ranks"
SMALL_FILES = 300


@dataclass(frozen=True)
class Aim:
    """The most that a command may cost: a multiple of its peer, or processor seconds."""

    ratio: float | None = None
    seconds: float | None = None


AIMS = {"snapshots": Aim(ratio=1.3), "traces": Aim(ratio=0.6), "dumps": Aim(ratio=0.5)}


@dataclass(frozen=True)
class Question:
    """A command to measure, the peer beside it, and what both ought to cost."""

    name: str
    ours: Sequence[str]
    peer: Sequence[str] = ()
    aim: Aim = Aim()
    peer_name: str = ""


def seconds(command: Sequence[str]) -> float:
    return measure(*command).seconds


def workbench(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "workbench", *words)


def python(code: str, path: Path) -> tuple[str, ...]:
    return (
        sys.executable,
        "-c",
        code.replace("orjson.loads", decoder()).replace("orjson", decoder().split(".")[0]),
        str(path),
    )


def decoder() -> str:
    return "orjson.loads" if importlib.util.find_spec("orjson") else "msgspec.json.decode"


def create(kind: str, of: str, path: Path, *sizes: int) -> None:
    """Write a file or a set in a process of its own, as generating takes gigabytes."""
    subprocess.run([sys.executable, FILES[of].__file__, str(path), kind, *map(str, sizes)], check=True)


def large_files(asked: argparse.Namespace, home: Path) -> Iterator[Question]:
    """Write one large artefact of each kind in turn, and yield the question about it."""
    share = 20 if asked.quick else 1
    for of in ("snapshots", "traces", "dumps"):
        aside = FILES[of].ASIDE
        kinds = [aside] if asked.aside else [kind for kind in FILES[of].KINDS if kind != aside]
        for kind in kinds if of in asked.only else []:
            if asked.kinds and kind not in asked.kinds:
                continue
            yield QUESTIONS[of](kind, home, share)


def snapshot(kind: str, home: Path, share: int) -> Question:
    path = home / f"{kind}_rank0_memory_snapshot.pickle"
    create(kind, "snapshots", path, 1_000_000 // share)
    ours = workbench("inspect", str(path), "--json", "--no-cache")
    return Question(f"snapshot, {kind}", ours, python(PICKLE, path), AIMS["snapshots"], "pickle.load")


def trace(kind: str, home: Path, share: int) -> Question:
    path = home / f"{kind}_rank0_trace.json.gz"
    create(kind, "traces", path, 1_000_000 // share)
    ours = workbench("trace", str(path), "--json", "--no-cache")
    return Question(f"trace, {kind}", ours, python(JSON, path), AIMS["traces"], "gunzip, json.loads")


def dumps(kind: str, home: Path, share: int) -> Question:
    folder = home / f"{kind}_dumps"
    create(kind, "dumps", folder, 1024 // min(share, 16), 2000)
    ours = workbench("hang", str(folder), "--json", "--no-cache")
    peer = decoder() if kind in ("json", "text") else "pickle.load"
    return Question(f"dumps, {kind}", ours, python(DUMPS, folder), AIMS["dumps"], peer)


QUESTIONS: dict[str, Callable[[str, Path, int], Question]] = {"snapshots": snapshot, "traces": trace, "dumps": dumps}


def small_runs(asked: argparse.Namespace, home: Path) -> Iterator[Question]:
    """Yield the questions about the start of the program and about small files."""
    if "small" not in asked.only or asked.aside:
        return
    yield Question("--help", workbench("--help"), aim=Aim(seconds=0.15))
    again = workbench("inspect", str(EXAMPLE), "--no-tui")
    measure(*again)
    yield Question("inspect of a small run, again", again, aim=Aim(seconds=0.5))
    files = SMALL_FILES // (20 if asked.quick else 1)
    many_files.traces(home / "small", files)
    command = workbench("trace", str(home / "small"), "--json", "--jobs", "2", "--no-cache")
    yield Question(f"{files} small traces", command, aim=Aim(seconds=20 * files / SMALL_FILES))


def answer(question: Question, rounds: int) -> bool:
    """Measure a command and its peer in turn, print a row of the table, and return whether the aim is met."""
    pairs = [(seconds(question.ours), seconds(question.peer) if question.peer else 0.0) for _ in range(rounds)]
    ours, peer = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(mine / other for mine, other in pairs) if question.peer else 0.0
    aim = question.aim
    met = ratio <= aim.ratio if aim.ratio else ours <= (aim.seconds or 0.0)
    beside = (
        f"{peer:.2f} ({question.peer_name}) | {ratio:.2f} | {aim.ratio}" if question.peer else f"| | {aim.seconds} s"
    )
    print(f"| {question.name} | {ours:.2f} | {beside} | {'met' if met else 'missed'} |", flush=True)
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=(*FILES, "small"), default=[*FILES, "small"])
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--aside", action="store_true", help="only the kinds that are kept aside")
    asked = parser.parse_args()
    met = True
    print("| what | CPU s | peer, CPU s | ratio | aim | |\n|---|--:|--:|--:|--:|---|")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ |= {"WORKBENCH_CACHE": f"{home}/cache", "PYTHONPYCACHEPREFIX": f"{home}/bytecode"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, as an installation does
        for words in (("--help",), ("inspect", str(EXAMPLE), "--no-tui")):
            measure(*workbench(*words))
        for ask in (small_runs, large_files):
            for question in ask(asked, home):
                met &= answer(question, asked.rounds)
    sys.exit(not met)


if __name__ == "__main__":
    main()
