"""Launch commands after `--` with real processes: every form on four ranks, its output, and the files that it leaves.

In most of them a rank only prints its rank, because torch takes seconds to import; one job trains.
"""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ranks import free_port

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
PROBE = """
import json, os, sys, time
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
place = [os.environ.get(name) for name in names]
ours = [entry for entry in sys.path if "recorders" in entry]
# In one write: ranks that share a pipe would mix the parts of a line.
print(f"probe {json.dumps([place, sys.argv[1:], ours])}\\n", end="", flush=True)
arguments = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
if "read" in sys.argv:
    print("read", sys.stdin.read())
if arguments.get("crash") == os.environ.get("RANK", "none"):
    raise ValueError("bad batch")
if arguments.get("exit") == os.environ.get("RANK", "all"):
    sys.exit(3)
time.sleep(float(arguments.get("sleep", 0)))
"""
DEEPSPEED = """#!/bin/bash
# As DeepSpeed's launcher on one node: it starts each rank with its place in the environment, and waits for all.
shift 2
for rank in 0 1 2 3; do
  RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT python "$@" &
done
wait
"""


@pytest.fixture
def home(tmp_path) -> Path:
    """Fixture: a user's folder with modules that have the names of our packages."""
    files = {"probe.py": PROBE, "my probe.py": PROBE, "pkg/probe.py": PROBE, "run.sh": 'python probe.py from "$1"'}
    files |= {"trainer.py": "raise SystemExit('not ours')", "analyzers.py": "raise SystemExit('not ours')"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    deepspeed = tmp_path / "bin" / "deepspeed"
    deepspeed.parent.mkdir()
    deepspeed.write_text(DEEPSPEED.replace("$PORT", str(free_port())))
    deepspeed.chmod(deepspeed.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    programs = [str(Path(sys.executable).parent), str(home / "bin"), os.environ["PATH"]]
    return os.environ | {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join(programs), "OMP_NUM_THREADS": "1"}


def launch(home: Path, *words: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the launcher like its user."""
    command = [sys.executable, "-P", "-m", "workbench", "launch", *words]
    return subprocess.run(
        command, cwd=home, env=environment(home), input=text, capture_output=True, text=True, check=False, timeout=300
    )


def places(output: str) -> list[list[str | None]]:
    """Return the lines of the ranks, sorted by rank: rank, arguments, and our folders in the import path."""
    return sorted(json.loads(found) for found in re.findall(r"probe (\[.*\])$", output, re.MULTILINE))


def manifest(home: Path) -> dict[str, object]:
    return json.loads((home / "outputs" / "run.json").read_text())


def assert_four_ranks(output: str, arguments: list[str]) -> None:
    told = places(output)
    assert [place[:4] for place, _, _ in told] == [[str(rank), "4", str(rank), "4"] for rank in range(4)], output
    assert all(place[4] and place[5] for place, _, _ in told)
    assert all(found == arguments and not ours for _, found, ours in told)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (("python", "my probe.py", "a b", "--config", "q\"uo'te"), ["a b", "--config", "q\"uo'te"]),
        (("probe.py", "x"), ["x"]),
        (("python", "-m", "pkg.probe", "--nproc", "7"), ["--nproc", "7"]),
    ],
)
def test_a_python_program_becomes_four_ranks(home, words, arguments):
    ended = launch(home, "--nproc", "4", "--no-watch", "--", *words)
    assert ended.returncode == 0, ended.stderr
    assert_four_ranks(ended.stdout, arguments)
    written = manifest(home)
    assert (written["status"], written["world_size"], written["command"][-1]) == ("completed", 4, words[-1])


def test_lines_of_any_length_are_passed_on(home):
    """A progress bar is shown as it is written, and a rank that writes no line ends does not fill the memory."""
    (home / "long.py").write_text(
        "import os, time\n"
        "for _ in range(48 if os.environ['RANK'] == '1' else 0): os.write(1, b'x' * (1 << 16))\n"
        "if os.environ['RANK'] == '0':\n"
        "    for part in (b'a 1%\\r', b'a 2%', b'\\r', b'\\nb', b'c\\r\\nd'): os.write(1, part); time.sleep(0.1)\n"
    )
    words = (sys.executable, "-P", "-m", "workbench", "launch", "--nproc", "2", "--no-watch", "--", "long.py")
    ended = subprocess.run(words, cwd=home, env=environment(home), capture_output=True, check=True, timeout=300)
    pieces = re.findall(rb"1: (x+)\n", ended.stdout)
    assert b"".join(pieces) == b"x" * (48 << 16)
    assert 2 <= len(pieces) <= 3
    rest = re.sub(rb"1: x+\n", b"", ended.stdout)
    assert rest.startswith(b"0: a 1%\r0: a 2%\r\n0: bc\r\n0: d\n")


ANSWERS = """
import os, signal, time
received = []
for name in ("SIGUSR1", "SIGUSR2", "SIGQUIT"):
    signal.signal(getattr(signal, name), lambda number, frame: received.append(number))
os.write(1, b"ready\\n")
while len(received) < COUNT:
    time.sleep(0.05)
os.write(1, f"received {received}\\n".encode())
"""


@pytest.mark.parametrize("options", [[], ["2"]])
def test_messages_to_the_launcher_reach_the_job(home, request, options):
    """Schedulers tell a job by SIGUSR1 that its time ends; the launcher must neither end by it nor keep it."""
    names = ["SIGUSR1", "SIGUSR2", "SIGQUIT"]
    (home / "answers.py").write_text(ANSWERS.replace("COUNT", str(len(names))))
    ranks = [word for number in options for word in ("--nproc", number)]
    command = [sys.executable, "-P", "-m", "workbench", "launch", *ranks, "--no-watch", "--", "python", "answers.py"]
    expected = int(options[0]) if options else 1
    with (home / "shown").open("wb") as shown:
        job = subprocess.Popen(command, cwd=home, env=environment(home), stdout=shown, start_new_session=True)
    request.addfinalizer(job.kill)
    deadline = time.monotonic() + 120
    while (home / "shown").read_bytes().count(b"ready") < expected and time.monotonic() < deadline:
        time.sleep(0.1)
    for name in names:
        os.kill(job.pid, getattr(signal, name))
        time.sleep(0.3)
    assert job.wait(60) == 0
    numbers = [int(getattr(signal, name)) for name in names]
    assert (home / "shown").read_text().count(f"received {numbers}") == expected


def states(pid: int) -> str:
    """Return the states of a process and of the commands `sleep` that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    sleeping = [each for each in children if Path(f"/proc/{each}/comm").read_text() == "sleep\n"]
    return "".join(Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] for each in (pid, *sleeping))


@pytest.mark.parametrize(("options", "count"), [([], 1), (["--nproc", "2"], 2)])
def test_a_command_stops_and_continues_with_the_launcher(home, request, options, count):
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--no-watch", *options, "--", "sleep", "100"]
    job = subprocess.Popen(command, cwd=home, env=environment(home), start_new_session=True)
    request.addfinalizer(job.kill)
    running, stopped = "S" * (1 + count), "T" * (1 + count)
    for number, expected in ((None, running), (signal.SIGTSTP, stopped), (signal.SIGCONT, running)):
        if number is not None:
            time.sleep(0.3)  # the launcher sets its handlers after the start of the command
            os.kill(job.pid, number)
        deadline = time.monotonic() + 60
        while states(job.pid).replace("R", "S") != expected:
            assert time.monotonic() < deadline, states(job.pid)
            time.sleep(0.1)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait(60) == 130


def wait_until(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (is_met := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return is_met


def running(name: str) -> list[int]:
    """Return the ids of the processes with a text in their command lines."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += [int(entry.name)] if name.encode() in (entry / "cmdline").read_bytes() else []
    return found


GROUP = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
print("ready", flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("words", [("--nproc", "2", "--", "python"), ("--", "torchrun", "--nproc-per-node", "2")])
def test_ranks_end_as_soon_as_they_would_by_a_signal_to_the_launcher(home, request, words):
    """Nobody is to blame then, so they wait for no dumps: here these would come only when the time for them is over."""
    script = home / "group_of_two.py"
    script.write_text(GROUP)
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--no-watch", *words, str(script)]
    with (home / "shown").open("wb") as shown:
        job = subprocess.Popen(command, cwd=home, env=environment(home), stdout=shown, start_new_session=True)
    request.addfinalizer(job.kill)
    assert wait_until(lambda: (home / "shown").read_bytes().count(b"ready") == 2, 120)
    collectors = running(f"recorders.hang.collector\0{(home / 'outputs').resolve()}")
    assert collectors
    for pid in collectors:
        os.kill(pid, signal.SIGSTOP)
    request.addfinalizer(lambda: [os.kill(pid, signal.SIGKILL) for pid in collectors])
    job.send_signal(signal.SIGTERM)
    assert wait_until(lambda: not [pid for pid in processes_in(home) if pid in running(str(script))], 10)
    assert job.wait(60) == 130


def test_ctrl_c_leaves_a_daemon_of_the_script_alive(home, request):
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--no-watch", "--", "bash", "-c"]
    script = "setsid sleep 101 & echo $! > daemon; sleep 102 & echo $! > child; echo ready; sleep 100"
    job = subprocess.Popen(
        [*command, script], cwd=home, env=environment(home), stdout=subprocess.PIPE, start_new_session=True
    )
    request.addfinalizer(job.kill)
    with job.stdout as shown:
        assert shown.readline() == b"ready\n"
    daemon, child = (int((home / name).read_text()) for name in ("daemon", "child"))
    time.sleep(0.3)
    job.send_signal(signal.SIGINT)
    assert job.wait(60) == 130
    assert child not in running("sleep\x00102")
    assert daemon in running("sleep\x00101")  # one that has ended has no command line
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize(
    "words",
    [
        ("torchrun", "--nproc-per-node", "4", "probe.py", "x"),
        ("python", "-m", "torch.distributed.run", "--nproc-per-node", "4", "probe.py", "x"),
        ("accelerate", "launch", "--multi_gpu", "--num_processes", "4", "probe.py", "x"),
        ("deepspeed", "--num_gpus", "4", "probe.py", "x"),
    ],
)
def test_a_launcher_starts_its_own_ranks(home, words):
    ended = launch(home, "--job.dump_folder", "outputs", "--", *words)
    assert ended.returncode == 0, ended.stderr
    assert_four_ranks(ended.stdout, ["x"])
    assert "probe [" in (home / "outputs/logs/stdout.log").read_text()


def test_a_shell_script_runs_once_with_its_input(home):
    (home / "run.sh").write_text('python probe.py read "$1"')
    ended = launch(home, "--", "bash", "run.sh", "two words", text="from stdin")
    assert ended.returncode == 0, ended.stderr
    [[place, arguments, _]] = places(ended.stdout)
    assert (place[0], arguments) == (None, ["read", "two words"])
    assert "read from stdin" in ended.stdout


def test_no_rank_is_blamed_for_the_exit_of_a_shell_script(home):
    ended = launch(home, "--", "bash", "-c", "exit 3")
    assert ended.returncode == 1
    assert "which rank failed is unknown" in " ".join(ended.stdout.split())
    assert "rank 0" not in ended.stdout
    assert (manifest(home)["exit_code"], manifest(home)["exit_codes"]) == (3, {})


def test_the_rank_that_exits_is_named(home):
    ended = launch(home, "--nproc", "4", "--", "python", "probe.py", "exit=2", "sleep=30")
    assert ended.returncode == 1
    assert "Rank 2 died" in " ".join(ended.stdout.split())
    assert "exit code 3" in ended.stdout
    assert manifest(home)["exit_codes"]["2"] == 3


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGINT, ("--nproc", "4", "--", "python", "probe.py", "sleep=300")),
        (signal.SIGTERM, ("--", "torchrun", "--nproc-per-node", "4", "probe.py", "sleep=300")),
        (signal.SIGKILL, ("--nproc", "4", "--", "python", "probe.py", "sleep=300")),
    ],
)
def test_a_signal_ends_the_launcher_and_all_ranks(home, number, words):
    command = [sys.executable, "-P", "-m", "workbench", "launch", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=home, env=environment(home), start_new_session=True, **streams) as job:
        lines = [job.stdout.readline() for _ in range(4)]
        assert all("probe" in line for line in lines), job.stderr.read()
        job.send_signal(number)
        _, narration = job.communicate(timeout=120)
    deadline = time.monotonic() + 90
    while (living := processes_in(home)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not living
    if number == signal.SIGKILL:
        said = subprocess.run(
            [sys.executable, "-P", "-m", "workbench", "inspect", "outputs", "--json"],
            cwd=home, env=environment(home), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        verdict = json.loads(said.stdout)["verdict"]
        assert (verdict["class"], verdict["status"]) == ("launcher_lost", "error")
        assert "Launcher lost" in verdict["sentence"]
        assert manifest(home)["launcher"]["ended_processes"] == 4
    else:
        assert job.returncode == 130
        assert "interrupted" in narration
        assert manifest(home)["status"] == "interrupted"


SAVES = """
import signal, time
def save(number, frame):
    signals.append(number)
    if len(signals) == 1:
        print("saving", flush=True)
        time.sleep(2)
        print("saved", flush=True)
signals = []
signal.signal(signal.SIGINT, save)
print("ready", flush=True)
while len(signals) < 2: time.sleep(0.1)
"""


def test_a_second_ctrl_c_is_for_the_ranks_alone_and_leaves_none_alive(home, request):
    (home / "saves.py").write_text(SAVES)
    command = [sys.executable, "-P", "-m", "workbench", "launch", "--nproc", "2", "--no-watch", "--", "saves.py"]
    with (home / "shown").open("wb") as shown:
        job = subprocess.Popen(command, cwd=home, env=environment(home), stdout=shown, start_new_session=True)
    request.addfinalizer(job.kill)
    for word in (b"ready", b"saving"):
        assert wait_until(lambda word=word: (home / "shown").read_bytes().count(word) == 2, 120)
        job.send_signal(signal.SIGINT)
    assert job.wait(60) == 130
    assert (home / "shown").read_bytes().count(b"saved") == 2
    assert not processes_in(home)


def processes_in(home: Path) -> list[int]:
    """Return the ids of the processes that run in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found += [int(entry.name)] if (entry / "cwd").readlink() == home else []
        except OSError:
            continue
    return found


def test_an_earlier_run_is_set_aside_and_files_of_the_user_stay(home):
    launch(home, "--", "bash", "-c", "mkdir -p outputs/logs outputs/steps; echo 1 > outputs/logs/mine.txt; exit 3")
    (home / "outputs/steps/rank_0.jsonl").write_text("")
    assert launch(home, "--", "bash", "-c", "true").returncode == 0
    [earlier] = (home / "outputs/previous").iterdir()
    assert json.loads((earlier / "run.json").read_text())["exit_code"] == 3
    assert (earlier / "steps/rank_0.jsonl").exists()
    assert (home / "outputs/logs/mine.txt").read_text() == "1\n"
    assert manifest(home)["status"] == "completed"
