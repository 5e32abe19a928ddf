"""Mutated artefacts of every format through the whole program: each is answered or refused, and nothing leaks.

    python benchmarks/fuzz.py [--seconds 60] [--inputs N] [--jobs 2] [--seed 0] [--keep FOLDER]
    python benchmarks/fuzz.py --replay FOLDER    # one input again, with the traceback

An input is a folder: some files of a recorded run, one to three of them mutated in their structure (values, keys,
lines, records) or byte by byte. It is discovered, analysed, compared with a healthy run at times, and rendered as text,
JSON, Markdown and HTML; TOML files go through `config explain`. A failure is: an exception other than an error for the
user, a reader that crashed, JSON that is not valid, a control character or markup of an artefact in a document, more
than CPU_S seconds or MEMORY bytes. Files are read in the worker's own process, as starting one for each costs ten
times more; tests and everyday use cover the child. Prints each new failure once, then the counts.
"""

import argparse
import contextlib
import gzip
import json
import math
import multiprocessing
import pickle
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from analyzers import cache, child, compare, store
from analyzers.errors import WorkbenchError
from analyzers.run import discover
from analyzers.store import Options
from workbench.ask import ask, room_for
from workbench.console import INVISIBLE
from workbench.options import Format
from workbench.present import render

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
CPU_S = 20
MEMORY = 3 << 30
LARGEST_SEED = 300_000
MARKUP = "<script>alert(1)</script>"
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 255, 2**31, 2_000_000_000, 2**63 - 1, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, math.nan,
    math.inf, -math.inf, "", "²", "-1", "1e999", "NaN", "0x7f", "\uff12", "\x1b[31mred\x1b]0;t\x07", "\u202eevil",
    "\ud800", "\0", "a" * 5000, "../../etc/passwd", "rank_2000000000", "[0, 1, 2000000000]", "a\r\nb", "%s{0}", MARKUP,
    [], {}, [[]], [None], {"": {}}, [0, "a", None, {}], {"name": 3}, "[" * 200, ["x"] * 300,
)  # fmt: skip
Files = dict[str, bytes]


# What is mutated.


def seeds() -> list[Files]:
    """The files of recorded runs, a set for each: what is long is cut, so that an input takes milliseconds."""
    folders = [path for path in sorted(FIXTURES.iterdir()) if path.is_dir() and not path.name.endswith("4ranks")]
    runs = [folder for top in folders for folder in parts_of(top)]
    sets = [files_of(run) for run in runs]
    return [files for files in sets if files]


def parts_of(folder: Path) -> list[Path]:
    """A folder of runs, or of examples, is one set for each."""
    if folder.name in ("traces", "other_trainers", "debug_server"):
        return sorted(path for path in folder.iterdir() if path.is_dir())
    return [folder]


def files_of(folder: Path) -> Files:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "truth.json")
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return {name: cut(name, body) for name, body in files.items() if len(body) < LARGEST_SEED}


def cut(name: str, body: bytes) -> bytes:
    """The same artefact with fewer entries."""
    kind, value = parsed(name, body)
    if kind in ("json", "pickle"):
        return written(name, kind, shortened(value))
    if kind == "lines":
        return written(name, kind, value[:40])
    return body


def shortened(value: Any, most: int = 40) -> Any:
    if isinstance(value, dict):
        return {key: shortened(item, most) for key, item in value.items()}
    return [shortened(item, most) for item in value[:most]] if isinstance(value, list) else value


def parsed(name: str, body: bytes) -> tuple[str, Any]:
    """What a file holds, and how: pickle, json, records (TensorBoard), lines or bytes."""
    plain = gzip.decompress(body) if name.endswith(".gz") else body
    with contextlib.suppress(Exception):
        if plain[:1] == b"\x80":
            return "pickle", pickle.loads(plain)
        if "tfevents" in name:
            return "records", records(plain)
        if plain[:1] in b"{[" and not name.endswith("jsonl"):
            return "json", json.loads(plain)
        return "lines", plain.decode().splitlines(keepends=True)
    return "bytes", plain


def written(name: str, kind: str, value: Any) -> bytes:
    if kind == "pickle":
        body = pickle.dumps(value)
    elif kind == "json":
        body = json.dumps(value).encode()
    elif kind == "records":
        body = b"".join(map(record, value))
    elif kind == "lines":
        body = "".join(value).encode(errors="surrogatepass")
    else:
        body = value
    return gzip.compress(body, 1) if name.endswith(".gz") else body


def records(body: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(body):
        (length,) = struct.unpack_from("<Q", body, place)
        found.append(body[place + 12 : place + 12 + length])
        place += 16 + length
    return found


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    """CRC-32C as TFRecord files have it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 & -(crc & 1))
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


# How it is mutated.


def mutant(rng: random.Random, files: Files) -> Files:
    """Some files of a set, of which one to three are changed."""
    names = rng.sample(sorted(files), min(len(files), rng.randint(1, 8)))
    chosen = {name: files[name] for name in names}
    for name in rng.sample(names, min(len(names), rng.randint(1, 3))):
        chosen[name] = mutated(rng, name, chosen[name])
    if rng.random() < 0.05:
        name = rng.choice(names)
        chosen[renamed(rng, name)] = chosen.pop(name)
    return chosen


def renamed(rng: random.Random, name: str) -> str:
    return re.sub(r"\d+", lambda match: rng.choice([match[0], "2000000000", "9" * 30, "-1", "²"]), name)[-200:]


def mutated(rng: random.Random, name: str, body: bytes) -> bytes:
    if rng.random() < 0.25:
        return any_bytes(rng, body)
    kind, value = parsed(name, body)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if kind in ("json", "pickle"):
            value = any_tree(rng, value, binary=kind == "pickle")
        elif kind == "lines":
            value = any_lines(rng, value)
        elif kind == "records" and value:
            place = rng.randrange(len(value))
            value[place] = any_bytes(rng, value[place])
        else:
            value = any_bytes(rng, value) if isinstance(value, bytes) else value
    with contextlib.suppress(RecursionError, ValueError, TypeError):
        return written(name, kind, value)
    return body


def any_bytes(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.choice((1, 1, 3, 20))):
        place, action = rng.randrange(len(data) + 1), rng.randrange(6)
        if action == 0:
            del data[place:]
        elif action == 1:
            data[place : place + rng.randint(1, 64)] = b""
        elif action == 2:
            data[place:place] = rng.choice((b"\0" * 16, b"[" * 5000, b"\xff\xfe", b"\x1b[2J", MARKUP.encode(), b"\n"))
        elif action == 3:
            data[place:place] = data[place : place + rng.randint(1, 400)]
        elif place < len(data):
            data[place] = rng.randrange(256)
    return bytes(data)


def any_tree(rng: random.Random, root: Any, *, binary: bool) -> Any:
    """Change a node of a tree of dicts and lists, which is found by walking down at random."""
    odd = rng.choice((*ODD, b"\xff\0", (1, 2), {1: 2}) if binary else ODD)
    node = root
    while isinstance(node, dict | list) and node:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if not isinstance(node[key], dict | list) or not node[key] or rng.random() < 0.15:
            change(rng, node, key, odd)
            return root
        node = node[key]
    return odd


def change(rng: random.Random, node: Any, key: Any, odd: Any) -> None:
    action = rng.randrange(7)
    if action == 0:
        del node[key]
    elif action == 1:
        node[key] = [node[key]]
    elif action == 2 and isinstance(node, list):
        node.insert(key, node[key])
    elif action == 2:
        node[odd if isinstance(odd, str) else "extra"] = node.pop(key)
    elif action == 3 and isinstance(node[key], int | float):
        node[key] = rng.choice((-node[key], node[key] * 1000, node[key] + 1, float(node[key])))
    elif action == 4:
        node[key] = str(node[key])[:10_000]
    else:
        node[key] = odd


def any_lines(rng: random.Random, lines: list[str]) -> list[str]:
    if not lines:
        return [str(rng.choice(ODD))]
    lines, place, action = list(lines), rng.randrange(len(lines)), rng.randrange(7)
    if action == 0:
        del lines[place]
    elif action == 1:
        lines.insert(place, lines[place])
    elif action == 2:
        lines.insert(place, f"{rng.choice(ODD)!s}\n")
    elif action == 3:
        other = rng.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    else:
        lines[place] = odd_token(rng, lines[place])
    return lines


def odd_token(rng: random.Random, line: str) -> str:
    tokens = list(re.finditer(r"\d+(?:\.\d+)?|\w+|[^\w\s]", line))
    if not tokens:
        return line
    token = rng.choice(tokens)
    return line[: token.start()] + str(rng.choice(ODD)) + line[token.end() :]


# What must hold.


class Leak(Exception):
    """A document holds what it must not."""


def check(folder: Path, baseline: Path | None = None) -> str:
    """Drive one input through everything; how it ended. Whatever else it raises is a failure."""
    run = discover(folder)
    room = room_for(run)
    report = ask(room, run, Options(jobs=1))
    for form in Format:
        check_document(form, render(report, form, run))
    if baseline is not None:
        compared = compare.analyze(discover(baseline), run, Options(jobs=1))
        check_document(Format.JSON, render(compared, Format.JSON, run))
        check_document(Format.TEXT, render(compared, Format.TEXT, run))
    crashed = [finding for finding in report.findings if "reader failed" in finding.why]
    if crashed:
        raise Leak(crashed[0].why[:300])
    return room


CONTROL = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{INVISIBLE}]")


def check_document(form: Format, text: str) -> None:
    text.encode()
    if form is Format.JSON:
        msgspec.json.decode(text.encode())
        json.loads(text, parse_constant=refuse)
        return
    if match := CONTROL.search(text):
        raise Leak(f"{form}: control character {match[0]!r}: {text[match.start() - 40 : match.end() + 20]!r}")
    if form in (Format.HTML, Format.MARKDOWN) and MARKUP in text:
        raise Leak(f"{form}: markup of an artefact")


def refuse(constant: str) -> None:
    raise Leak(f"JSON holds {constant}")


def check_configuration(path: Path) -> str:
    from workbench.commands.config import explain, show

    with contextlib.suppress(WorkbenchError):
        json.loads(explain(path, [], as_json=True))
        explain(path, [], as_json=False)
        show(path, [], as_json=False)
    return "config"


def read_here(paths: list[Path], reader: str, target: Path, max_memory: int | None) -> None:  # noqa: ARG001
    """Read in this process; what a reader does not expect is raised here as it is."""
    task = child.Task(reader, target, paths, MEMORY, CPU_S)
    status, message = child.perform(task)
    if status != child.DONE:
        raise child.explain(child.ChildExit(status, message), task)


class TooSlow(BaseException):
    """An input takes more processor time than allowed. Not an `Exception`: nothing may catch it on the way."""


def give_up(*_: object) -> None:
    raise TooSlow


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Read in this process, under limits of memory and of processor time for each input, with a cache of its own."""
    before, kept, handler = store.read_in_child, cache.cache_folder, signal.signal(signal.SIGPROF, give_up)
    limits = resource.getrlimit(AS)
    own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    store.read_in_child = read_here
    resource.setrlimit(AS, (own + MEMORY, limits[1]))
    try:
        yield
    finally:
        store.read_in_child, cache.cache_folder = before, kept
        resource.setrlimit(AS, limits)
        signal.signal(signal.SIGPROF, handler)


AS = resource.RLIMIT_AS


def outcome(drive: Callable[[], str]) -> tuple[str, str]:
    """Run one input; return how it ended and, for a failure, the source line, by which failures are grouped."""
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


def attempt(rng: random.Random, sets: list[Files], configs: list[bytes], keep: Path | None) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=fast_folder()) as home:
        folder, cache.cache_folder = Path(home) / "run", lambda: Path(home) / "cache"
        if rng.random() < 0.05:
            files = {"config.toml": mutated(rng, "config.toml", rng.choice(configs))}
            write_input(folder, files)
            ended = outcome(lambda: check_configuration(folder / "config.toml"))
        else:
            files = mutant(rng, rng.choice(sets))
            write_input(folder, files)
            baseline = FIXTURES / "healthy_2ranks" if rng.random() < 0.1 else None
            ended = outcome(lambda: check(folder, baseline))
        if ended[0] == "failed" and keep:
            place = keep / re.sub(r"[^\w.-]+", "-", ended[1])[:100]
            if not place.exists():
                shutil.copytree(folder, place)
        return ended


def fast_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def run(seed: int, seconds: float, inputs: int, keep: Path | None = None) -> tuple[Counter[str], Counter[str]]:
    """Try inputs until the processor time or the number is used up; how they ended, and the failures by place."""
    rng, sets = random.Random(seed), seeds()
    configs = [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.toml"))]
    ends: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    limit = time.process_time() + seconds
    with prepared():
        while time.process_time() < limit and sum(ends.values()) < inputs:
            end, place = attempt(rng, sets, configs, keep)
            ends[end] += 1
            if place:
                failures[place] += 1
    return ends, failures


def replay(folder: Path) -> str:
    """Drive one kept input and let its exception through."""
    [config] = list(folder.glob("config.toml")) or [None]
    return check_configuration(config) if config else check(folder, FIXTURES / "healthy_2ranks")


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
            print(replay(given.replay))
        return
    tasks = [
        (given.seed + 1000 * job, given.seconds, given.inputs // given.jobs, given.keep) for job in range(given.jobs)
    ]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        results = pool.starmap(run, tasks)
    ends, failures = (sum((result[part] for result in results), Counter()) for part in (0, 1))
    print(f"{sum(ends.values())} inputs: {dict(ends)}")
    for place, count in failures.most_common():
        print(f"{count:6d}  {place}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
