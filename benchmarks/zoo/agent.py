"""Run a script on several ranks like torchrun: environment, log folders, restarts, and the end of all ranks when one
fails.

The ranks are forked from a process that has already imported torch, because importing it takes most of the time of so
small a job. The store, the folders and the table of failures are torchrun's own; only the loop that watches the ranks
is new.
"""

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

PATIENCE_S = 60.0
TERM_S = 8.0
TIMED_OUT = 124
POLL_S = 0.1
RUN_ID = "job"


@dataclass
class Attempt:
    """The ranks of one attempt (one start of all ranks): running processes, and exit codes of those that have ended."""

    number: int
    pids: dict[int, int]
    running: dict[int, int]
    codes: dict[int, int] = field(default_factory=dict)

    def poll(self) -> None:
        """Store the exit codes of ranks that have ended."""
        for rank, pid in list(self.running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.codes[rank] = os.waitstatus_to_exitcode(status)
                del self.running[rank]

    def failed(self) -> dict[int, int]:
        """Return the exit codes that are not 0."""
        return {rank: code for rank, code in self.codes.items() if code}


class Agent:
    """An equivalent of torchrun on one node, for a script and a folder of logs."""

    def __init__(self, script: Path, ranks: int, logs: Path, *, restarts: int = 0) -> None:
        self.script, self.ranks, self.restarts = script, ranks, restarts
        self.home = logs / f"{RUN_ID}_x7k2p1"

    def run(self) -> int:
        """Run the job to its end and return torchrun's exit code; torchrun's messages go to stderr."""
        deadline = time.monotonic() + PATIENCE_S
        for number in range(self.restarts + 1):
            attempt = self.start(number)
            while attempt.running and not attempt.failed() and time.monotonic() < deadline:
                attempt.poll()
                time.sleep(POLL_S)
            failed = failures(attempt)
            timed_out = bool(attempt.running) and not failed
            self.end(attempt)
            # Those that only the agent ended stand in the table too, with SIGTERM; a rank that ended with 0 does not.
            failed |= failures(attempt, besides=failed) if failed else {}
            if failed:
                first = next(iter(failed.values()))
                where = f"local_rank: {first.local_rank} (pid: {first.pid}) of binary: {sys.executable}"
                say(f"failed (exitcode: {first.exitcode}) {where}")
            else:
                return TIMED_OUT if timed_out else 0
            if number < self.restarts:
                say(f"[default] Worker group FAILED. {self.restarts - number}/{self.restarts} attempts left;")
        print(ChildFailedError(str(self.script.name), failed).format_msg(), file=sys.stderr, flush=True)
        return 1

    def start(self, number: int) -> Attempt:
        """Fork the ranks of an attempt, which connect through a new store."""
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        pids = {rank: self.fork(rank, number) for rank in range(self.ranks)}
        return Attempt(number, pids, dict(pids))

    def fork(self, rank: int, number: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            code = self.become(rank, number)
        finally:
            os._exit(code)

    def become(self, rank: int, number: int) -> int:
        """Run the script as rank `rank` in this process, and return its exit code."""
        folder = self.home / f"attempt_{number}" / str(rank)
        folder.mkdir(parents=True)
        os.environ |= self.environment(rank, number, folder)
        for stream, name in ((1, "stdout.log"), (2, "stderr.log")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        sys.argv = [str(self.script)]
        code = interpret(self.script)
        # A forked process would leave out what the interpreter does at its end: to wait for threads comes first.
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # noqa: SLF001
        sys.stdout.flush()
        return code

    def environment(self, rank: int, number: int, folder: Path) -> dict[str, str]:
        local = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "ROLE_RANK": rank,
            "GROUP_RANK": 0,
            "TORCHELASTIC_RESTART_COUNT": number,
        }
        sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), self.ranks)
        texts = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_MAX_RESTARTS": str(self.restarts),
            "TORCHELASTIC_RUN_ID": RUN_ID,
            "TORCHELASTIC_ERROR_FILE": str(folder / "error.json"),
        }
        return {name: str(value) for name, value in (local | sizes).items()} | texts

    def end(self, attempt: Attempt) -> None:
        """End the running ranks: with SIGTERM, later with SIGKILL."""
        for pid in attempt.running.values():
            say(f"Sending process {pid} closing signal SIGTERM")
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + TERM_S
        while attempt.running and time.monotonic() < deadline:
            attempt.poll()
            time.sleep(POLL_S)
        for pid in attempt.running.values():
            say(f"Unable to shutdown process {pid} via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        attempt.codes |= dict.fromkeys(attempt.running, -signal.SIGKILL)


def failures(attempt: Attempt, besides: Collection[int] = ()) -> dict[int, ProcessFailure]:
    """Return the ranks that failed, as torchrun reports them, except the ranks in `besides`."""
    failed = attempt.failed().items()
    return {
        rank: ProcessFailure(rank, attempt.pids[rank], code, "<N/A>") for rank, code in failed if rank not in besides
    }


def interpret(script: Path) -> int:
    """Run a script as the main module and return its exit code."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(script)
    try:
        exec(compile(script.read_text(), str(script), "exec"), module.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 (an interpreter calls its hook and ends)
        kind, error, trace = sys.exc_info()
        assert kind is not None
        assert error is not None
        of_script = trace.tb_next if trace else None
        sys.last_type, sys.last_value, sys.last_traceback = kind, error, of_script
        sys.excepthook(kind, error.with_traceback(of_script), of_script)
        return 1
    return 0


def say(text: str) -> None:
    """Print a line in torchrun's log format."""
    now = datetime.now(UTC)
    print(
        f"E{now:%m%d %H:%M:%S}.{now:%f}000 {os.getpid()} torch/distributed/elastic/multiprocessing/api.py:882] {text}",
        file=sys.stderr,
        flush=True,
    )


def launch(script: Path, ranks: int, folder: Path, *, restarts: int = 0) -> int:
    """Run a script under an agent in a new session, with its output in a log; return the agent's process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        read_end, _write_end = os.pipe()  # a terminal on which nobody types
        log = os.open(folder / "torchrun.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream, end in ((0, read_end), (1, log), (2, log)):
            os.dup2(end, stream)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        code = Agent(script, ranks, folder / "logs", restarts=restarts).run()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 70
    finally:
        os._exit(code)


def warm_up() -> None:
    """Import in the parent all modules that the ranks would import; the first optimizer step needs hundreds of them."""

    import torch._dynamo

    from workbench.recorders import attach

    assert attach
    assert torch._dynamo  # noqa: SLF001
