"""Test Flight Recorder on one device: dumps of NCCL, a watchdog timeout, a stuck rank, two ranks on one device."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.case import ROOT, Case, Measured, Place, check, environment_of, run_python

WAIT_S, LOOKS = 90.0, 2

DUMP = """
import sys
import torch, torch.distributed as dist
from pathlib import Path
from workbench.recorders.hang.flight_recorder import FlightRecorder, dump_ring
from workbench.recorders.files import write_bytes

folder, device = Path(sys.argv[1]), sys.argv[2]
FlightRecorder.prepare(folder)
dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0], group_desc="second")
value = torch.ones(1024, device=device)
for _ in range(3):
    dist.all_reduce(value)
    dist.all_gather_into_tensor(torch.empty(1024, device=device), value)
    dist.all_reduce(value, group=group)
    dist.broadcast(value, src=0)
dist.barrier()
if device == "cuda":
    torch.cuda.synchronize()
flight = FlightRecorder(folder)
flight.start()
(folder / "dumps").mkdir(exist_ok=True)
write_bytes(folder / "dumps" / "rank_0", dump_ring())
flight.close()
"""

WATCHDOG = """
import sys
from datetime import timedelta
from pathlib import Path
import torch, torch.distributed as dist
from workbench.recorders.hang.flight_recorder import FlightRecorder

FlightRecorder.prepare(Path(sys.argv[1]))
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=5),
                        device_id=torch.device("cuda", 0))
value = torch.ones(1024, device="cuda")
dist.all_reduce(value)
torch.cuda.synchronize()
for _ in range(60):
    torch.cuda._sleep(2_000_000_000)  # about a second each: the next collective cannot begin before its timeout
dist.all_reduce(value)
torch.cuda.synchronize()
"""


def cases() -> Iterator[Case]:
    """Yield the cases about collectives."""
    yield Case("collectives", "dump", read_dump)
    yield Case("collectives", "stuck_rank", find_stuck_rank)
    yield Case("collectives", "watchdog", read_watchdog, limit_s=180, needs_cuda=True)
    yield Case("collectives", "two_ranks_one_device", read_refusal, needs_cuda=True)


def read_dump(place: Place) -> Measured:
    """Return facts from the report on a dump of a healthy job with two groups."""
    from analyzers.hangs import analyze

    done = run_python(place, "-c", DUMP, str(place.folder), place.device)
    measured: Measured = {"exit_code": done.returncode, "output": (done.stdout + done.stderr)[-1000:]}
    path = place.folder / "dumps" / "rank_0"
    check(path.is_file(), "no dump was written", measured)
    report = analyze(place.folder)
    place.keep(path)
    place.keep(path.with_name("groups_0.json"))
    measured |= {
        "bytes": path.stat().st_size,
        "class": report.verdict.kind,
        "sentence": report.verdict.sentence,
        "groups": [group.desc for group in report.data.groups],
        "missing": report.verdict.missing,
    }
    check("second" in str(measured["groups"]), "the second group is not in the report", measured)
    return measured


def read_watchdog(place: Place) -> Measured:
    """Let NCCL's watchdog end a process whose collective cannot start, and analyse its dump and its log."""
    from analyzers.hangs import analyze
    from analyzers.logs import analyze as analyze_logs

    done = run_python(place, "-c", WATCHDOG, str(place.folder), limit_s=150)
    log = place.folder / "stderr.log"
    log.write_text(done.stderr, encoding="utf-8")
    place.keep(log)
    dumps = sorted((place.folder / "dumps").rglob("rank_0"))
    measured: Measured = {
        "exit_code": done.returncode,
        "dumps": [str(path.relative_to(place.folder)) for path in dumps],
    }
    check(dumps, "the watchdog wrote no dump", measured | {"output": done.stderr[-2000:]})
    place.keep(dumps[0])
    report, logs = analyze(place.folder), analyze_logs(log)
    measured |= {
        "class": report.verdict.kind,
        "sentence": report.verdict.sentence,
        "log_events": [str(event.kind) for event in logs.data.events][:10],
        "log_sentence": logs.verdict.sentence,
    }
    check("watchdog_timeout" in str(measured["log_events"]), "the log's timeout is not recognised", measured)
    return measured


def read_refusal(place: Place) -> Measured:
    """Start two ranks on the same device, which NCCL refuses, and analyse their output."""
    from analyzers.logs import analyze

    command = (
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--log-dir",
        str(place.folder / "logs"),
        "--redirects",
        "3",
    )
    script = place.folder / "two.py"
    script.write_text(
        "import torch, torch.distributed as dist\ntorch.cuda.set_device(0)\ndist.init_process_group('nccl')\n"
        "dist.all_reduce(torch.ones(1, device='cuda'))\ntorch.cuda.synchronize()\n",
        encoding="utf-8",
    )
    done = run_python(place, *command, str(script))
    measured: Measured = {"exit_code": done.returncode}
    for path in (place.folder / "logs").rglob("stderr.log"):
        place.keep(path, f"rank_{path.parent.name}_stderr.log")
    report = analyze(place.folder / "logs")
    measured |= {"class": report.verdict.kind, "sentence": report.verdict.sentence}
    return measured


def find_stuck_rank(place: Place) -> Measured:
    """Let a rank of the trainer sleep in step 3 until dumps are taken, and check that the analysis names this rank."""
    from analyzers.hangs import analyze

    folder = place.folder / "run"
    flags = (
        "--module",
        "llama3",
        "--config",
        "llama3_debugmodel",
        "--faults.name",
        "stuck_sleep",
        "--faults.step",
        "3",
    )
    timeouts = ("--comm.train_timeout_seconds", "8", "--job.dump_folder", str(folder))
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    with (place.folder / "output").open("w", encoding="utf-8") as output:
        job = subprocess.Popen(
            [sys.executable, "-m", "trainer", *flags, *timeouts],
            stdout=output, stderr=output, cwd=ROOT, env=environment_of(place, **alone), start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(folder / "dumps", job)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    report = analyze(folder)
    measured: Measured = {
        "class": report.verdict.kind,
        "ranks": report.verdict.ranks,
        "sentence": report.verdict.sentence,
        "output": (place.folder / "output").read_text(encoding="utf-8", errors="replace")[-500:],
    }
    for path in (folder / "dumps").glob("*_0*"):
        place.keep(path)
    check("trainer/faults.py" in report.verdict.sentence, "the line of the stuck rank is not named", measured)
    return measured


def wait_for(dumps: Path, job: "subprocess.Popen[bytes]") -> None:
    """Wait until both rounds of dumps are written, or the job has ended."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and job.poll() is None and looks(dumps) < LOOKS:
        time.sleep(0.5)


def looks(dumps: Path) -> int:
    """Return the number of rounds in the set of dumps."""
    accounts = [json.loads(path.read_text(encoding="utf-8")) for path in dumps.rglob("collection.json")]
    return max((len(account["rounds"]) for account in accounts), default=0)
