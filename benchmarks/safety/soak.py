"""Use `serve` and `watch` long and heavily: there must be no error, memory stays bounded, answers come in time.

    python benchmarks/safety/soak.py serve [--clients 200] [--seconds 600]
    python benchmarks/safety/soak.py watch [--ranks 8] [--hours 1]

`serve`: a dashboard process, and clients that request its pages, documents and callbacks, each as soon as it has the
previous answer. Of ten clients one sends its requests byte by byte and stops, one reads its answers slowly, and one
sends bodies that are too long, with and without the token. Printed are requests, errors, latencies of the other
clients, and the server's memory, threads and open files at the start, in the middle and at the end.

`watch`: the app, and the step logs of a job, which grow by a step of half a second each. The time is simulated: the app
reads the job's state again as soon as it has drawn, not twice a second. Printed is the memory after each tenth of the
time.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from workbench.watch.app import WatchApp  # noqa: E402

FIXTURES = ROOT / "tests" / "fixtures"
PAGES = ("/", "/memory", "/hang", "/steps", "/report.json", "/report.md", "/_dash-layout", "/_dash-dependencies")
HUGE = 64 << 20
PATIENCE_S = 240
STEP_NS = 500_000_000
PAGE = os.sysconf("SC_PAGE_SIZE")
CUT_OFF = (ConnectionResetError, BrokenPipeError)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


# The dashboard.


@dataclass
class Tally:
    """The results of the clients; Python's lists and counters can be extended from several threads."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Dashboard:
    """A running dashboard: its process id, its port, and the cookie that contains its token."""

    process: int
    port: int
    cookie: str
    folder: str

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)

    def state(self) -> str:
        """Return the server's memory, threads and open files."""
        proc = Path(f"/proc/{self.process}")
        threads, files = len(list((proc / "task").iterdir())), len(list((proc / "fd").iterdir()))
        return f"{resident_bytes(self.process) / 2**20:.0f} MiB, {threads} threads, {files} files"


@contextlib.contextmanager
def serving(run: Path) -> Iterator[Dashboard]:
    """Serve a run in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "workbench", "serve", str(run), "--port", "0"]
            server = subprocess.Popen(command, stderr=output, env=os.environ | {"TMPDIR": folder})
        try:
            while not (told := re.search(r":(\d+)/\?token=(\S+)", log.read_text())):
                if server.poll() is not None:
                    raise RuntimeError(log.read_text())
                time.sleep(0.1)
            asked = http.client.HTTPConnection("127.0.0.1", int(told[1]), timeout=PATIENCE_S)
            asked.request("GET", f"/?token={told[2]}")
            answer = asked.getresponse()
            cookie, place = answer.getheader("Set-Cookie").partition(";")[0], answer.getheader("Location").rstrip("/")
            yield Dashboard(server.pid, int(told[1]), cookie, place)
            # Whatever the clients did, it still answers.
            asked = http.client.HTTPConnection("127.0.0.1", int(told[1]), timeout=PATIENCE_S)
            asked.request("GET", f"{place}/report.json", headers={"Cookie": cookie})
            json.loads(asked.getresponse().read())
        finally:
            server.terminate()
            server.wait()


def ask(site: Dashboard, rng: random.Random, tally: Tally) -> None:
    """Request a page like a browser."""
    connection, began = site.connect(), time.monotonic()
    with contextlib.closing(connection):
        connection.request("GET", site.folder + rng.choice(PAGES), headers={"Cookie": site.cookie})
        answer = connection.getresponse()
        answer.read()
    tally.seconds.append(time.monotonic() - began)
    tally.statuses[str(answer.status)] += 1


def dribble(site: Dashboard, rng: random.Random, tally: Tally) -> None:
    """Send a request byte by byte, and stop in the middle."""
    head = f"GET {site.folder}/report.json HTTP/1.1\r\nHost: localhost\r\nCookie: {site.cookie}\r\n"
    request = f"{head}X: {'a' * 200}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", site.port), timeout=PATIENCE_S) as connection:
        for byte in request[: rng.randrange(len(request))]:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
    tally.statuses["cut by the client"] += 1


def read_slowly(site: Dashboard, rng: random.Random, tally: Tally) -> None:
    """Read an answer in small pieces, with pauses."""
    with contextlib.closing(site.connect()) as connection:
        connection.request("GET", site.folder + rng.choice(PAGES), headers={"Cookie": site.cookie})
        answer = connection.getresponse()
        while answer.read(2048):
            time.sleep(0.01)
    tally.statuses[f"{answer.status} read slowly"] += 1


def send_much(site: Dashboard, rng: random.Random, tally: Tally) -> None:
    """Send a body that is too long: with or without the token, and with or without an announced length."""
    known = rng.random() < 0.5
    headers = {"X-Workbench": "drop", "Cookie": site.cookie if known else "no=1", "Content-Length": str(HUGE)}
    with contextlib.closing(site.connect()) as connection:
        try:
            connection.request("PUT", f"{site.folder}/drop/1/huge", iter([b"\0" * (1 << 20)] * (HUGE >> 20)), headers)
            status = str(connection.getresponse().status)
        except CUT_OFF:
            status = "cut by the server"
    tally.statuses[f"{status} for {HUGE >> 20} MiB {'with' if known else 'without'} the token"] += 1


KINDS: list[Callable[[Dashboard, random.Random, Tally], None]] = [ask] * 7 + [dribble, read_slowly, send_much]


def client(number: int, site: Dashboard, until: float, tally: Tally) -> None:
    """Send requests until the time `until`; failures are counted."""
    rng, kind = random.Random(number), KINDS[number % len(KINDS)]
    while time.monotonic() < until:
        try:
            kind(site, rng, tally)
        except Exception as error:  # noqa: BLE001  # that is what is looked for
            tally.errors[f"{kind.__name__}: {type(error).__name__} {error}"[:160]] += 1


def soak_serve(run: Path, clients: int, seconds: float) -> tuple[Tally, list[str]]:
    """Let clients send requests for `seconds`; return their results, and the states of the server."""
    tally = Tally()
    with serving(run) as site:
        ask(site, random.Random(0), Tally())
        states, began = [site.state()], time.monotonic()
        threads = [
            threading.Thread(target=client, args=(number, site, began + seconds, tally)) for number in range(clients)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds / 2)
        states.append(site.state())
        for thread in threads:
            thread.join()
        return tally, [*states, site.state()]


def show_serve(clients: int, seconds: float) -> bool:
    tally, states = soak_serve(FIXTURES / "oom_2ranks", clients, seconds)
    print(f"{clients} clients, {seconds:.0f} s: {dict(tally.statuses)}")
    print(f"errors: {dict(tally.errors) or 'none'}")
    cuts = statistics.quantiles(tally.seconds, n=100)
    print(f"latency: median {cuts[49]:.2f} s, 95 % {cuts[94]:.2f} s, longest {max(tally.seconds):.2f} s")
    print(
        *(f"server {when}: {state}" for when, state in zip(("before", "half", "after"), states, strict=True)), sep="\n"
    )
    return not tally.errors


# The app that watches.


def step_line(step: int, rank: int) -> str:
    """Return a step-log line like those of our step recorder."""
    phases = {"data_wait": 10_000_000 + rank, "fwd": 150_000_000, "bwd": 250_000_000, "optim": 50_000_000}
    loss = 5 - step / 10_000
    line = {
        "step": step,
        "start_ns": step * STEP_NS,
        "dur_ns": STEP_NS,
        "phases": phases,
        "cpu_ns": phases,
        "device_ns": {},
        "residual_ns": STEP_NS - sum(phases.values()),
        "tokens": 8192,
        "loss": loss,
        "local_loss": loss,
        "grad_norm": 1.0,
        "memory_bytes": 1 << 30,
        "reserved_bytes": 1 << 30,
        "alloc_retries": 0,
        "tags": [],
        "seqs": {"0": 3 * step},
    }
    return json.dumps(line) + "\n"


class GrowingJob:
    """The folder of a simulated job, whose step logs grow."""

    def __init__(self, folder: Path, ranks: int) -> None:
        (folder / "steps").mkdir(parents=True)
        manifest = {"schema": "workbench.run/1", "status": "running", "world_size": ranks}
        (folder / "run.json").write_text(json.dumps(manifest))
        self.step = 0
        self.logs = [(folder / "steps" / f"rank_{rank}.jsonl").open("a") for rank in range(ranks)]
        for rank, log in enumerate(self.logs):
            header = {
                "schema": "workbench.steps/1",
                "rank": rank,
                "world_size": ranks,
                "pid": os.getpid(),
                "device": "cpu",
            }
            log.write(json.dumps(header | {"host": socket.gethostname(), "start_ns": 0}) + "\n")

    def close(self) -> None:
        for log in self.logs:
            log.close()

    def grow(self) -> None:
        """Write one step of each rank."""
        self.step += 1
        for rank, log in enumerate(self.logs):
            log.write(step_line(self.step, rank))
            log.flush()


async def soak_watch(folder: Path, ranks: int, steps: int) -> list[int]:
    """Watch a job for `steps` steps, reading its state once per step; return the resident bytes after each tenth."""
    job = GrowingJob(folder, ranks)
    app, sizes = WatchApp(folder), []
    async with app.run_test(size=(120, 40)) as pilot:
        for number in range(1, steps + 1):
            job.grow()
            app._look()  # noqa: SLF001  # the app's own timer would take the whole hour
            while not all(worker.is_finished for worker in app.workers):
                await pilot.pause(0)
            if number % (steps // 10) == 0:
                sizes.append(resident_bytes(os.getpid()))
        await pilot.pause()
        shown = app.job
    job.close()
    if shown is None or not shown.now.recent or shown.now.recent[-1].step != steps:
        raise RuntimeError(f"the app does not show step {steps}: {shown}")
    return sizes


def show_watch(ranks: int, hours: float) -> bool:
    steps, began = int(hours * 3600e9 / STEP_NS), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        sizes = asyncio.run(soak_watch(Path(folder) / "run", ranks, steps))
    print(f"{steps} steps of {ranks} ranks, {time.process_time() - began:.0f} s of processor time")
    print("MiB after each tenth:", *(f"{size / 2**20:.1f}" for size in sizes))
    return sizes[-1] < 1.1 * sizes[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("serve", "watch"))
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hours", type=float, default=1.0)
    given = parser.parse_args()
    fine = show_serve(given.clients, given.seconds) if given.what == "serve" else show_watch(given.ranks, given.hours)
    sys.exit(not fine)


if __name__ == "__main__":
    main()
