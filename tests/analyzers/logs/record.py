"""Run `crashing_job.py` under torchrun in every way to end, and keep what it prints in `recorded/`.

    python tests/analyzers/logs/record.py [CASE ...]

Needs torchrun beside this interpreter and about ten minutes. Paths and host names are replaced by common ones.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
JOB = HERE / "crashing_job.py"
TARGET = HERE / "recorded"
ENVIRONMENT = {"mismatch": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "unreachable": {}}
FOLDERS = ("sigkill", "recorded_error", "worker_error")
"""Cases that are kept as torchrun's log folder, with what torchrun itself prints beside it."""
PLAIN = (
    "exception", "chained", "sigkill", "sigsegv", "hang", "early_exit", "worker_killed", "worker_error", "disk_full",
    "missing_file", "mismatch", "barrier", "unused", "nan", "host_memory", "sizes", "recorded_error", "completed",
    "terminated", "import_error",
)  # fmt: skip


def torchrun(*arguments, ranks=3, seconds=120, terminate_after=None, **environment):
    """Run a job under torchrun and return its output, stdout and stderr together."""
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    if not any(a.startswith(("--master", "--rdzv")) for a in arguments):
        command[3:3] = ["--standalone"]
    command[3:3] = [f"--nproc-per-node={ranks}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | environment, cwd=HERE, text=True
    )
    try:
        return process.communicate(timeout=terminate_after or seconds)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM if terminate_after else signal.SIGKILL)
        return process.communicate()[0]


def cleaned(text):
    """Return a text with the paths and names of this machine replaced."""
    for name, other in (
        (str(Path(sys.prefix)), "/home/user/venv"),
        (str(HERE), "/home/user/app"),
        (socket.gethostname(), "node01"),
        (sys.base_prefix, "/usr"),
    ):
        text = (
            text.replace(name, other) if len(name) > 3 else text.replace(f"host      : {name}", f"host      : {other}")
        )
    return text


def record(case):
    """Record one case."""
    environment = ENVIRONMENT.get(case, {})
    if case in FOLDERS:
        record_folder(case, environment)
        return
    wait = 25 if case == "terminated" else None
    output = torchrun(str(JOB), case, terminate_after=wait, **environment)
    (TARGET / f"{case}.log").write_text(cleaned(output))


def record_folder(case, environment):
    """Record a case as torchrun's log folder."""
    folder = TARGET / case
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        output = torchrun("--log-dir", scratch, "-r", "3", str(JOB), case, **environment)
        shutil.copytree(next(Path(scratch).iterdir()), folder / "run_k2j4h1")
    (folder / "launcher.log").write_text(cleaned(output))
    for file in folder.rglob("*"):
        if file.is_file():
            file.write_text(cleaned(file.read_text()))


def record_start_ups():
    """Record jobs that fail before a rank runs."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        text = torchrun("--master-addr=127.0.0.1", f"--master-port={port}", str(JOB), "completed")
        (TARGET / "port_in_use.log").write_text(cleaned(text))
    text = torchrun(
        "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29733",
        "--rdzv-conf=join_timeout=5,last_call_timeout=1", str(JOB), "completed", ranks=1,
    )  # fmt: skip
    (TARGET / "rendezvous.log").write_text(cleaned(text))
    text = torchrun(
        "--nnodes=2", "--node-rank=1", "--rdzv-conf=timeout=8", "--master-addr=127.0.0.1", "--master-port=29777",
        str(JOB), "completed", ranks=1,
    )  # fmt: skip
    (TARGET / "unreachable.log").write_text(cleaned(text))
    (TARGET / "arguments.log").write_text(cleaned(torchrun(str(JOB), "completed", "--learning-rate=1e-4", ranks=2)))
    (TARGET / "no_script.log").write_text(cleaned(torchrun(str(HERE / "trian.py"), ranks=2)))


def main():
    TARGET.mkdir(exist_ok=True)
    for case in sys.argv[1:] or (*PLAIN, "start_ups"):
        record_start_ups() if case == "start_ups" else record(case)
        print("recorded", case, flush=True)


if __name__ == "__main__":
    main()
