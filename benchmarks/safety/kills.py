"""Kill each process of the workbench at random moments: no written file may be lost, and a restart must continue.

    python benchmarks/safety/kills.py [--rounds 10] [--seed 0] [--victim rank ...]

The victims `rank` and `collector` are killed in a training job of two ranks with all recorders and checkpoints,
`launcher` in such a job under `workbench launch`; `reader`, `tui`, `watch` and `serve` while they read a run for the
first time. These conditions are checked:

- each file that existed before still exists: with the same bytes or, if it is a log, with more at its end; a restart
  moves the files of the earlier run to `previous/`, including dumps, and overwrites none;
- no process is left over;
- a job without its collector trains on and ends well; a job without a rank or its launcher is `failed`, never `ok`;
- a restart resumes from the last complete checkpoint and completes;
- the next answer is the same as for a folder in which no process was killed, whatever the cache contains.

Prints a line for each victim: the number of rounds, and the violated conditions.
"""

import argparse
import contextlib
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from analyzers.errors import WorkbenchError
from analyzers.rooms import JOINED, ask
from analyzers.run import discover
from analyzers.store import Options
from workbench.command_options.options import Format
from workbench.present import render

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import ranks  # noqa: E402  # of the tests: their ranks are forked from a process that has torch

FIXTURES = ROOT / "tests" / "fixtures"
STEPS, EVERY = 12, 3
LOGS = (".jsonl", ".log", ".txt")
PATIENCE_S = 240.0
Problems = list[str]
SETTINGS = (
    *("--config", str(ROOT / "configs" / "debug_model.toml"), "--training.steps", str(STEPS)),
    *("--training.local_batch_size", "2", "--training.seq_len", "64", "--profiling.profile_freq", "4"),
    *("--checkpoint.enable", "--checkpoint.interval", str(EVERY), "--checkpoint.keep_latest_k", "0"),
    *("--checkpoint.no_last_save_model_only", "--comm.train_timeout_seconds", "60"),
)


# What there is, and what is left of it.


def contents(folder: Path) -> dict[str, bytes]:
    """Return {path: content} of the files of a run that the analyzers may read."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not any(part.startswith(".") for part in name.parts) and path.is_file():
            # A draft may be renamed while we look.
            with contextlib.suppress(FileNotFoundError):
                found[str(name)] = path.read_bytes()
    return found


def lost(before: dict[str, bytes], folder: Path) -> Problems:
    """Return the files that are lost; a file may have been moved to `previous/`, and a log may have grown."""
    after = contents(folder)
    kept = {re.sub(r"^previous/[^/]+/", "", name): body for name, body in after.items() if name.startswith("previous/")}
    problems = []
    for name, body in before.items():
        found = [place[name] for place in (after, kept) if name in place]
        if not any(same(name, body, other) for other in found):
            problems.append(f"{name}: {'changed' if found else 'gone'}")
    return problems


def same(name: str, before: bytes, after: bytes) -> bool:
    """Return whether a file has kept its content; `run.json` may be rewritten at the end of a run."""
    grows = name.endswith(LOGS) or "tfevents" in name or ".pid" in name
    rewritten = name == "run.json" or re.search(r"heartbeat|made_with|checkpoint/", name) is not None
    return rewritten or (after.startswith(before) if grows else after == before)


def complete_checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.parent.name[5:]) for path in folder.glob("checkpoint/step-*/.metadata"))


def verdict(folder: Path) -> dict[str, object]:
    """Return the verdict on a folder."""
    return json.loads(answer(folder))["verdict"]


def processes(mark: str) -> list[int]:
    """Return the ids of the processes whose command line or environment contains `mark`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            if words and mark.encode() in words + (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def wait_until(happened: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def left_over(mark: str) -> Problems:
    return [] if wait_until(lambda: not processes(mark), 90) else [f"left over: {processes(mark)}"]


# A training job.


def start_ranks(folder: Path) -> list[ranks.ForkServerProcess]:
    """Start two ranks of our trainer with a log each, forked from a process that has imported torch."""
    node = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    node["MASTER_PORT"] = str(ranks.free_port())
    logs = folder.with_name(f"{folder.name}-output")
    logs.mkdir(parents=True, exist_ok=True)
    arguments = [*SETTINGS, "--job.dump_folder", str(folder)]
    return [
        ranks.forked("trainer", arguments, node | {"RANK": rank, "LOCAL_RANK": rank}, logs / rank, logs / rank)
        for rank in ("0", "1")
    ]


def wait_for_moment(folder: Path, rng: random.Random) -> None:
    """Wait for a random step of the run, and then for a random part of the next."""
    step, log = rng.randrange(STEPS), folder / "steps" / "rank_0.jsonl"
    wait_until(lambda: log.exists() and log.read_bytes().count(b"\n") > step)
    time.sleep(rng.random() * 0.5)


def collector_of(folder: Path) -> int | None:
    found = processes(str(folder))
    return next((pid for pid in found if b"hang.collector" in Path(f"/proc/{pid}/cmdline").read_bytes()), None)


def kill_rank(home: Path, rng: random.Random) -> Problems:
    """Kill a rank: files must stay, the verdict must blame no other rank, and a restart must resume."""
    folder = home / "run"
    job = start_ranks(folder)
    wait_for_moment(folder, rng)
    victim = rng.choice(job)
    before = contents(folder)
    victim.kill()
    codes = [ranks.ended(process) for process in job]
    problems = lost(before, folder) + left_over(str(folder))
    if all(code == 0 for code in codes):
        return [*problems, "the run had ended before"]
    if verdict(folder)["status"] == "ok":
        problems.append("a run without a rank is ok")
    return problems + restarted(folder)


def kill_collector(home: Path, rng: random.Random) -> Problems:
    """Kill the collector: the job must continue and end well."""
    folder = home / "run"
    job = start_ranks(folder)
    wait_for_moment(folder, rng)
    before, collector = contents(folder), collector_of(folder)
    if collector:
        with contextlib.suppress(ProcessLookupError):
            os.kill(collector, signal.SIGKILL)
    codes = [ranks.ended(process) for process in job]
    problems = lost(before, folder) + left_over(str(folder))
    if codes != [0, 0]:
        problems.append(f"the ranks ended with {codes}")
    found = verdict(folder)
    if found["status"] not in ("ok", "warning"):
        problems.append(f"a run that completed is {found}")
    return problems


def kill_launcher(home: Path, rng: random.Random) -> Problems:
    """Kill the launcher: its guard must end the ranks and record that in run.json, and a restart must resume."""
    folder = home / "run"
    command = [sys.executable, "-m", "workbench", "launch", "--nproc", "2", *SETTINGS, "--job.dump_folder", str(folder)]
    with (home / "launcher.log").open("wb") as log:
        launcher = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    wait_for_moment(folder, rng)
    before = contents(folder)
    launcher.kill()
    launcher.wait()
    problems = left_over(str(folder)) + lost(before, folder)
    manifest = json.loads((folder / "run.json").read_text())
    if manifest["status"] == "completed":
        return [*problems, "the run had ended before"]
    if manifest["status"] != "failed" or not manifest.get("launcher", {}).get("lost"):
        problems.append(f"run.json says {manifest['status']} of a lost launcher")
    if verdict(folder)["status"] == "ok":
        problems.append("a run without its launcher is ok")
    return problems + restarted(folder)


def restarted(folder: Path) -> Problems:
    """Start the same run again: it must resume from the last complete checkpoint and overwrite nothing."""
    before, complete = contents(folder), complete_checkpoints(folder)
    codes = [ranks.ended(process) for process in start_ranks(folder)]
    problems = [f"after the restart: {problem}" for problem in lost(before, folder)]
    if codes != [0, 0]:
        return [*problems, f"the restart ended with {codes}"]
    manifest = json.loads((folder / "run.json").read_text())
    resumed = (manifest["resumed"] or {}).get("step")
    if resumed != (complete[-1] if complete else None):
        problems.append(f"complete checkpoints {complete}, resumed from {resumed}")
    if (manifest["status"], manifest["last_step"]) != ("completed", STEPS):
        problems.append(f"the restart is {manifest['status']} after step {manifest['last_step']}")
    return problems + left_over(str(folder))


# What reads a run.


def kill_reader(home: Path, rng: random.Random) -> Problems:
    """Kill processes that read files: each unread file must be named, and the next answer must be complete."""
    run = copied_run(home)
    before, found, given = contents(run), discover(run), ""
    with cache_in(home / "cache"):
        with readers_killed(rng) as killed:
            try:
                report = ask(JOINED, found, Options(jobs=rng.choice((1, 4))))
            except WorkbenchError as error:
                told = [error.message]
            else:
                told, given = [finding.why for finding in report.findings], render(report, Format.JSON, found)
        problems = lost(before, run)
        # Files that are read as a set are read one by one when its reader dies: then nothing is missed.
        if killed and not any("killed" in why for why in told) and given != answer(run):
            problems.append(f"{len(killed)} readers were killed, and nothing says so: {told}"[:300])
        return problems + answers_as_ever(run, home)


@contextlib.contextmanager
def readers_killed(rng: random.Random) -> Iterator[list[int]]:
    """Kill, from another process, some of the processes that read files for this one; yields their number."""
    reading, writing = os.pipe()
    parent, seed, killed = os.getpid(), rng.random(), []
    killer = os.fork()
    if not killer:
        kill_children_of(parent, random.Random(seed), writing)
    os.close(writing)
    try:
        yield killed
    finally:
        os.kill(killer, signal.SIGKILL)
        os.waitpid(killer, 0)
        with os.fdopen(reading, "rb") as pipe:
            killed += list(pipe.read())


def kill_children_of(parent: int, rng: random.Random, pipe: int) -> NoReturn:
    seen = {os.getpid()}
    while True:
        for listing in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for pid in set(map(int, listing.read_text().split())) - seen:
                    seen.add(pid)
                    time.sleep(rng.random() * 0.05)
                    if rng.random() < 0.7:
                        os.kill(pid, signal.SIGKILL)
                        os.write(pipe, b"k")
        time.sleep(0.001)


def kill_tui(home: Path, rng: random.Random) -> Problems:
    return kill_on_a_terminal(home, rng, "inspect")


def kill_watch(home: Path, rng: random.Random) -> Problems:
    return kill_on_a_terminal(home, rng, "watch")


def kill_on_a_terminal(home: Path, rng: random.Random, command: str) -> Problems:
    """Kill a terminal app while it reads: the next app must work, and the killed app's readers must end."""
    run = copied_run(home)
    before = contents(run)
    with cache_in(home / "cache"):
        master, slave = pty.openpty()
        words = [sys.executable, "-m", "workbench", command, str(run)]
        app = subprocess.Popen(words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        shown = drained(master)
        # The moment is one in the life of the app: until it has drawn a random part of what it draws at the start.
        wanted = rng.randrange(1, 12_000)
        wait_until(lambda: shown() >= wanted or app.poll() is not None, seconds=10)
        app.kill()
        app.wait()
        os.close(master)
        return lost(before, run) + left_over(str(run)) + answers_as_ever(run, home)


def drained(master: int) -> Callable[[], int]:
    """Read a terminal until it closes, in a thread; the returned function gives the number of bytes so far."""
    count = [0]

    def read() -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(master, 65536):
                count[0] += len(chunk)

    threading.Thread(target=read, daemon=True).start()
    return lambda: count[0]


def kill_serve(home: Path, rng: random.Random) -> Problems:
    """Kill the server at its start or while it answers: the next must get the same port and answer the same."""
    run = copied_run(home)
    before = contents(run)
    with cache_in(home / "cache"):
        port = str(ranks.free_port())
        server, log = start_server(run, port, home)
        if rng.random() < 0.5:
            time.sleep(rng.random() * 3)
        else:
            wait_until(lambda: "token=" in log.read_text())
            time.sleep(rng.random() * 0.5)
        server.kill()
        server.wait()
        problems = lost(before, run) + left_over(str(run))
        again, log = start_server(run, port, home)
        try:
            if not wait_until(lambda: "token=" in log.read_text() or again.poll() is not None) or again.poll():
                return [*problems, f"no second server: {log.read_text()}"]
            token = re.search(r"token=(\S+)", log.read_text())[1]
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            served = opener.open(f"http://127.0.0.1:{port}/report.json?token={token}", timeout=PATIENCE_S).read()
        finally:
            again.terminate()
            again.wait()
        if json.loads(served)["verdict"] != json.loads(answer(run))["verdict"]:
            problems.append("the second server answers otherwise")
        return problems + answers_as_ever(run, home)


def start_server(run: Path, port: str, home: Path) -> tuple[subprocess.Popen[bytes], Path]:
    log = home / "serve.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "workbench", "serve", str(run), "--port", port]
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True), log


def copied_run(home: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "oom_2ranks", home / "run"))


def answers_as_ever(run: Path, home: Path) -> Problems:
    """Check that the answer with the existing cache is the same as with an empty one, twice."""
    now, again = answer(run), answer(run)
    with cache_in(home / "empty"):
        return [] if now == again == answer(run) else ["the answer depends on the cache"]


def answer(run: Path) -> str:
    found = discover(run)
    return render(ask(JOINED, found, Options()), Format.JSON, found)


@contextlib.contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("WORKBENCH_CACHE")
    os.environ["WORKBENCH_CACHE"] = str(folder)
    try:
        yield
    finally:
        del os.environ["WORKBENCH_CACHE"]
        if before is not None:
            os.environ["WORKBENCH_CACHE"] = before


VICTIMS: dict[str, Callable[[Path, random.Random], Problems]] = {
    "rank": kill_rank,
    "collector": kill_collector,
    "launcher": kill_launcher,
    "reader": kill_reader,
    "tui": kill_tui,
    "watch": kill_watch,
    "serve": kill_serve,
}


def kill(victim: str, seed: int, home: Path) -> Problems:
    """Kill a victim at a moment chosen by the seed; return the violated conditions."""
    return VICTIMS[victim](home, random.Random(f"{victim} {seed}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victim", choices=VICTIMS, nargs="+", default=list(VICTIMS))
    given = parser.parse_args()
    failed = 0
    for victim in given.victim:
        problems: Counter[str] = Counter()
        for seed in range(given.seed, given.seed + given.rounds):
            with tempfile.TemporaryDirectory(prefix=f"kill-{victim}-") as home:
                found = kill(victim, seed, Path(home))
            problems.update(found)
            failed += any(found)
        print(f"{victim:10} {given.rounds} rounds: {dict(problems) or 'all held'}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
