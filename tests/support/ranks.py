"""Run ranks of a training job as real processes that are forked from a process which has already imported torch.

Importing torch and its distributed parts takes about five processor seconds, which is most of the cost of a small run.
Behaviour of the launcher itself is tested with the real launcher.
"""

import atexit
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORKSERVER = multiprocessing.get_context("forkserver")
PRELOADED = (
    *("torch", "torch.distributed.tensor.parallel", "torch.distributed.fsdp", "torch.distributed.checkpoint"),
    *("torch.distributed.pipelining", "torch.nn.parallel", "torch.profiler"),
)
FORKSERVER.set_forkserver_preload(list(PRELOADED))
PATIENCE_S = 200.0


@dataclass(frozen=True)
class Ended:
    """How a job ended: the exit code of each rank, and the output of all ranks (stdout and stderr)."""

    exit_codes: list[int]
    output: str

    @property
    def returncode(self) -> int:
        """0 if all ranks succeeded, else the first exit code that is not 0."""
        return next((code for code in self.exit_codes if code), 0)


def start(target: str, *arguments: str, ranks: int = 1, **environment: str) -> None:
    """Run a module or a script, with the interface of `benchmarks.start_job.start_job`.

    Raises:
        RuntimeError: A rank failed.
    """
    with tempfile.TemporaryDirectory() as logs:
        ended = run_job(target, arguments, Path(logs), ranks, **environment)
    if ended.returncode:
        raise RuntimeError(ended.output)


def run_job(target: str, arguments: Sequence[str], logs: Path, ranks: int = 1, **environment: str) -> Ended:
    """Run a module (`trainer`) or a script (`job.py`) on `ranks` ranks of one node, each with a log in `logs`.

    With RANK and WORLD_SIZE in the environment, only that rank runs.
    """
    logs.mkdir(parents=True, exist_ok=True)
    node = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    node["MASTER_PORT"] = str(free_port())
    written = [logs / f"rank_{rank}.log" for rank in range(ranks)]
    processes = [
        forked(target, arguments, node | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | environment, log, log)
        for rank, log in enumerate(written)
    ]
    codes = [ended(process) for process in processes]
    return Ended(codes, "".join(log.read_text(errors="replace") for log in written if log.exists()))


def run_command(command: Sequence[str], *, env: Mapping[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
    """Run `python [-P] -m MODULE ARGUMENTS` in a forked process, with the interface of `subprocess.run`; output is
    captured.
    """
    module = command.index("-m") + 1
    with tempfile.TemporaryDirectory() as folder:
        log, errors = Path(folder, "stdout"), Path(folder, "stderr")
        code = ended(forked(command[module], command[module + 1 :], env, log, errors))
        return subprocess.CompletedProcess(command, code, log.read_text(), errors.read_text())


def forked(
    target: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path, errors: Path
) -> ForkServerProcess:
    """Start a process that has already imported torch."""
    # The server hands its own environment on: OpenMP reads the number of its threads when torch is loaded.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    process = FORKSERVER.Process(
        target=become, args=(target, list(arguments), dict(environment), str(log), str(errors))
    )
    process.start()
    return process


def ended(process: ForkServerProcess) -> int:
    """Return the exit code of a process; a process that does not end in time is killed."""
    process.join(PATIENCE_S)
    process.kill()
    process.join()
    return -9 if process.exitcode is None else process.exitcode


def become(target: str, arguments: list[str], environment: Mapping[str, str], log: str, errors: str) -> None:
    """Turn this process into an interpreter of a module or script: set its environment, arguments and output files."""
    os.environ.update(environment)
    for stream, path in ((1, log), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.argv = [target, *arguments]
    sys.path[:] = [str(ROOT), *(entry for entry in sys.path if entry not in {"", str(ROOT)})]
    code = run(target)
    atexit._run_exitfuncs()  # as an interpreter that ends; multiprocessing leaves them out
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as the trainer itself ends: gloo may abort when Python takes it down


def run(target: str) -> int:
    """Run a module or script and return its exit code."""
    try:
        if target.endswith(".py"):
            runpy.run_path(target, run_name="__main__")
        else:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 (an interpreter prints it and ends)
        traceback.print_exc()
        return 1
    return 0


def free_port() -> int:
    """Return a port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
