"""A disk that fails, in any way, costs a recording but not the job."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import small_disk

import ranks

ROOT = Path(__file__).parents[3]
JOB = """
import os, resource, shutil, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
sys.path.append({support!r})
import small_disk

sys.dont_write_bytecode = True  # with a limit of the size of files, Python leaves half a file
disk, case, moment = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
out = disk / "out"
if case in ("full", "read-only"):
    small_disk.mount(disk, 1 << 20)

def fail(now):
    if now != moment:
        return
    if case == "full":
        small_disk.fill(disk)
    if case == "read-only":
        small_disk.make_read_only(disk)
    if case == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    if case == "deleted":
        shutil.rmtree(out)
    if case == "truncated":
        [os.truncate(path, 0) for path in out.rglob("*") if path.is_file()]
    if case == "file":
        out.write_text("in the way")
    if case == "pipe":
        (out / "steps").mkdir(parents=True)
        os.mkfifo(out / "steps" / "rank_0.jsonl")
        os.mkfifo(out / "steps" / "heartbeat_0.bin")
    if case == "device":
        (out / "steps").mkdir(parents=True)
        (out / "steps" / "rank_0.jsonl").symlink_to("/dev/full")

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
fail("before")
from workbench import recorders
from workbench.recorders.timing.profiler_traces import TraceRecorder
recorders.start(out, steps=True)
small = nn.Linear(4, 4)
memory = recorders.MemoryRecorder(out / "memory_snapshot", small, freq=2)
values, finite = recorders.record_tensors(small, out), recorders.check_finite(small, out)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 8):
    if step == 3:
        fail("middle")
    with memory.step(step):
        small(torch.ones(1, 4)).sum().backward()
        if step == 4:
            small.weight.grad[0] = float("nan")  # a report of the check
    model(torch.ones(2, 8)).sum().backward()
    dist.broadcast(torch.ones(4), 0)
    optimizer.step()
    optimizer.zero_grad()
    dist.new_group([0])
finite.close()
memory.close()
values.close()
traces = TraceRecorder(out / "profile_traces", freq=2, warmup=1)
for step in (1, 2):
    with traces.step(step):
        small(torch.ones(1, 4))
traces.close()
print("finished", flush=True)
if moment == "middle":
    raise ValueError("of the script")
dist.destroy_process_group()
"""


FILES_OF_STEPS = {"memory": "memory_snapshot.pickle", "traces": "trace.json"}


def unreadable(folder: Path) -> list[Path]:
    """Return the files of a run that are incomplete."""
    broken = []
    for path in folder.rglob("*"):
        try:
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            if path.suffix == ".pickle":
                pickle.loads(path.read_bytes())  # our own
            if path.name.startswith("heartbeat_"):
                assert path.stat().st_size in (0, 64) if path.is_file() else True
        except (ValueError, EOFError, pickle.UnpicklingError, AssertionError):
            broken.append(path)
    return broken


@pytest.mark.parametrize(
    ("case", "moment"),
    [
        *(("full", "before"), ("full", "middle"), ("read-only", "before"), ("limit", "before"), ("limit", "middle")),
        *(("deleted", "middle"), ("truncated", "middle"), ("file", "before"), ("pipe", "before"), ("device", "before")),
    ],
)
def test_a_failing_disk_does_not_reach_the_job(tmp_path: Path, case: str, moment: str) -> None:
    script, disk = tmp_path / "train.py", tmp_path / "disk"
    script.write_text(JOB.format(support=str(ROOT / "tests" / "support")))
    disk.mkdir()
    ended = ranks.run_job(str(script), [str(disk), case, moment], tmp_path / "logs", KINETO_LOG_LEVEL="6")
    if ended.exit_codes == [small_disk.NOT_PERMITTED]:
        pytest.skip("namespaces of users and mounts are not permitted here")
    assert ended.exit_codes == [1 if moment == "middle" else 0], ended.output
    assert "finished" in ended.output
    assert ended.output.count("Traceback") == (moment == "middle")
    noted = [line for line in ended.output.splitlines() if line.startswith("workbench:")]
    # What lies in a file that somebody truncates or deletes is lost without an error.
    assert len(noted) == 1 or (case in ("deleted", "truncated") and not noted), ended.output
    assert case == "truncated" or not unreadable(disk)


def test_a_recorder_writes_into_no_file_of_the_script(tmp_path: Path) -> None:
    code = f"""
import os
from workbench.recorders.timing.step_log import StepRecorder
recorder = StepRecorder({str(tmp_path)!r})
with recorder.step(1):
    pass
os.closerange(3, 4096)
own = os.open({str(tmp_path / "own")!r}, os.O_RDWR | os.O_CREAT)
for number in range(own + 1, 1024):
    os.dup2(own, number)
with recorder.step(2), recorder.phase("fwd"):
    pass
recorder.close()
assert all(os.fstat(number).st_size == 0 for number in range(own, 1024))
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert (tmp_path / "own").read_bytes() == b""


def test_recorders_follow_no_link_in_place_of_the_folder_of_a_step(tmp_path: Path) -> None:
    victims = [tmp_path / name / f"rank0_{kind}" for name, kind in FILES_OF_STEPS.items()]
    for victim in victims:
        victim.parent.mkdir()
        victim.write_text("precious")
        (tmp_path / "out" / victim.parent.name).mkdir(parents=True)
        (tmp_path / "out" / victim.parent.name / "iteration_1").symlink_to(victim.parent)
        draft = tmp_path / "out" / victim.parent.name / "iteration_2" / f".{victim.name}"
        draft.parent.mkdir()
        draft.symlink_to(victim)
    code = f"""
import torch
from workbench.recorders import MemoryRecorder
from workbench.recorders.timing.profiler_traces import TraceRecorder
model = torch.nn.Linear(4, 4)
memory = MemoryRecorder({str(tmp_path / "out" / "memory")!r}, model, freq=1)
for n in (1, 2):
    with memory.step(n):
        model(torch.ones(1, 4)).sum().backward()
memory.close()
trace = TraceRecorder({str(tmp_path / "out" / "traces")!r}, freq=1, warmup=0)
for n in (1, 2):
    with trace.step(n):
        model(torch.ones(1, 4)).sum().backward()
trace.close()
"""
    job = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "EEXIST" in job.stderr
    for victim in victims:
        assert victim.read_text() == "precious"
        assert (tmp_path / "out" / victim.parent.name / "iteration_2" / victim.name).stat().st_size > len("precious")


def test_the_log_goes_on_after_all_descriptors_were_closed(tmp_path: Path) -> None:
    code = f"""
import os
from workbench.recorders.timing.step_log import StepRecorder
recorder = StepRecorder({str(tmp_path)!r})
for step in (1, 2):
    with recorder.step(step):
        pass
    os.closerange(3, 4096)
recorder.close()
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    lines = (tmp_path / "steps" / "rank_0.jsonl").read_text().splitlines()
    assert [json.loads(line).get("step") for line in lines] == [None, 1, 2]


USER_SCRIPT = """
import sys
import torch, torch.distributed as dist
sys.path.append({support!r})
import small_disk
from pathlib import Path

disk, moment, status = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    if step == 2:
        if dist.get_rank() == 0 and moment == "middle":
            small_disk.fill(disk)
        dist.barrier()
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    dist.broadcast(torch.ones(4), 0)
    print("step", step, "x" * 5000)
print("finished", dist.get_rank())
if status and dist.get_rank() == 1:
    sys.exit(status)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "status"), [("before", 0), ("middle", 0), ("middle", 7)])
def test_a_launched_job_prints_and_ends_as_without_a_full_disk(tmp_path: Path, moment: str, status: int) -> None:
    script, disk = tmp_path / "train.py", tmp_path / "disk"
    support = ROOT / "tests" / "support"
    script.write_text(USER_SCRIPT.format(support=str(support)))
    disk.mkdir()
    fill = f"import sys, pathlib; sys.path.append({str(support)!r}); import small_disk, subprocess; "
    fill += f"small_disk.fill(pathlib.Path({str(disk)!r})); " if moment == "before" else ""
    fill += "sys.exit(subprocess.call(sys.argv[1:]))"
    launch = [sys.executable, "-m", "workbench", "launch", "--nproc", "2", "--job.dump_folder", str(disk / "out")]
    command = [*launch, "--", sys.executable, str(script), str(disk), moment, str(status)]
    small = [sys.executable, str(support / "small_disk.py"), str(disk), str(1 << 20), sys.executable, "-c", fill]
    ended = subprocess.run(
        [*small, *command], capture_output=True, text=True, cwd=ROOT, env={**os.environ}, check=False, timeout=120
    )
    if ended.returncode == small_disk.NOT_PERMITTED:
        pytest.skip("namespaces of users and mounts are not permitted here")
    assert ended.returncode == (1 if status else 0), ended.stderr
    for rank in (0, 1):
        assert f"{rank}: finished {rank}" in ended.stdout
        assert f"{rank}: step 5 {'x' * 5000}" in ended.stdout
    assert "Traceback" not in ended.stderr
    if status:
        assert "rank 1 with exit status 7" in ended.stderr
        assert "Verdict" in ended.stdout
        assert "disk full" not in ended.stdout
