"""Run a planned job to its end: start its ranks with torchrun's elastic agent, or run the user's command once.

The ranks write to pipes, from which threads copy their output to files, and to the terminal.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std

from analyzers.files import private_opener
from workbench.console import note
from workbench.launch.guard import guarded_job
from workbench.launch.own_folder import temporary_folder, usable_folder
from workbench.launch.plan import Plan
from workbench.launch.processes import MARK, as_system_error, end_processes, has_handler, read, run_child, send
from workbench.python_path import working_folder

_PIPE_BYTES = 1 << 20
"""The output that a rank may write while this process does not run, before it has to wait."""
_LINE_BYTES = 1 << 20
"""The bytes of a line after which it is passed on before its end."""
_DRAIN_S = 2.0
"""The seconds to wait for the rest of the output after the end of the ranks; a daemon of theirs may keep it open."""


class PipedLogs(DefaultLogsSpecs):
    """torchrun's scheme of log files, but the ranks write to pipes, from which threads copy to the files.

    With `shown`, the output is also copied to this process's own. With `prefixed`, each of these lines begins with the
    rank.
    """

    def __init__(self, folder: Path, *, shown: bool, prefixed: bool) -> None:
        usable, why = usable_folder(folder, "logs are", "workbench_logs_")
        if why:
            note(why)
        # With the null device, torchrun's agent keeps no logs.
        super().__init__(log_dir=str(usable or os.devnull), redirects=Std.ALL)
        self._pipes = temporary_folder("wb_")
        self._sinks = (sys.stdout.buffer, sys.stderr.buffer) if shown else (None, None)
        self._prefixed = prefixed
        self._lock = threading.Lock()
        self.lost: list[OSError] = []
        """Why our own stdout could not be written; empty if all that the ranks printed was passed on."""
        self._copies: list[threading.Thread] = []

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return where the ranks write, and start to copy from there; torchrun's agent calls this for each attempt."""
        targets = super().reify(envs)
        if self._pipes is None or self.root_log_dir == os.devnull:
            return targets
        for paths, sink in zip((targets.stdouts, targets.stderrs), self._sinks, strict=True):
            for local_rank, path in paths.items():
                pipe = self._pipes / f"{len(self._copies)}"
                os.mkfifo(pipe, 0o600)
                prefix = f"{envs[local_rank].get('RANK', local_rank)}: ".encode() if self._prefixed else b""
                copy = threading.Thread(target=self._copy, args=(pipe, Path(path), sink, prefix), daemon=True)
                copy.start()
                self._copies.append(copy)
                paths[local_rank] = str(pipe)
        return targets

    def close(self) -> None:
        """Wait for the rest of the output, and remove the pipes."""
        if self._pipes is None:
            return
        for pipe in self._pipes.iterdir():
            # A thread waits for a rank that was never started.
            with contextlib.suppress(OSError):
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        deadline = time.monotonic() + _DRAIN_S
        for copy in self._copies:
            copy.join(max(0.0, deadline - time.monotonic()))
        shutil.rmtree(self._pipes, ignore_errors=True)

    def _copy(self, pipe: Path, log: Path, sink: BinaryIO | None, prefix: bytes) -> None:
        # Both ends wait until the other one is opened.
        source = os.open(pipe, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, source)
            file: BinaryIO | None = None
            with contextlib.suppress(OSError):
                file = stack.enter_context(open(log, "wb", buffering=0, opener=private_opener))
            lines = _Lines(prefix)
            # Where the reader of our output has gone, as `head` does, the rank learns of it as without the launcher.
            with contextlib.suppress(BrokenPipeError):
                while chunk := os.read(source, 1 << 16):
                    file = self._write(file, chunk)
                    if sink is not None:
                        sink = self._write(sink, lines.whole(chunk) if prefix else chunk)
                self._write(sink, lines.rest())

    def _write(self, file: BinaryIO | None, content: bytes) -> BinaryIO | None:
        """Write to one of the two outputs, and return it; None if it cannot be written any more.

        Raises:
            BrokenPipeError: Nobody reads from this output any more.
        """
        if file is None or not content:
            return file
        try:
            with self._lock:
                file.write(content)
                file.flush()
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            if file is self._sinks[0]:
                self.lost.append(as_system_error(error))
            return None
        return file


class _Lines:
    """Prefixes the lines of a rank, and holds back what follows the last one: another rank may write in between.

    A progress bar ends its lines with a carriage return. A line that is longer than `_LINE_BYTES` is passed on in
    pieces of that size, as if each were a line: a rank that writes no line ends would fill the memory.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._is_after_return = False

    def whole(self, chunk: bytes) -> bytes:
        """Add what the rank has written, and return the prefixed lines that it completes."""
        feed = b""
        if self._is_after_return and chunk.startswith(b"\n"):
            feed, chunk = chunk[:1], chunk[1:]  # the second half of a line end
        self._is_after_return = chunk.endswith(b"\r")
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if end:
            text = b"".join([*self._held, chunk[:end]])
            self._held = [chunk[end:]]
            self._held_bytes = len(chunk) - end
            return feed + b"".join(self._prefix + line for line in text.splitlines(keepends=True))
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        return feed + (self.rest() if self._held_bytes >= _LINE_BYTES else b"")

    def rest(self) -> bytes:
        """Return what is held back, as a prefixed line; empty if nothing is."""
        text = b"".join(self._held)
        self._held = []
        self._held_bytes = 0
        return self._prefix + text + b"\n" if text else b""


_ENDING = Path("dumps", ".ending")
"""The file in the run's folder with the id of the job that a person or scheduler ends."""
_MONITOR_S = 0.5
"""The seconds between two checks of the elastic agent for dead ranks.

When the agent finds a dead rank, it stops all others, so the recorders must notice a dead rank earlier to take dumps.
"""


@dataclass
class Outcome:
    """How a job ended: `status` is completed, failed or interrupted.

    `exit_codes` maps each failed rank to its exit status (-N: signal N killed it). If the command was run once and is
    not a rank, its status is in `exit_code`. `logs` is the folder with the logs of this node's ranks. `first_rank` is
    the global rank of this node's local rank 0. Both are None if unknown.
    """

    status: str
    exit_codes: dict[int, int] = field(default_factory=dict)
    exit_code: int | None = None
    logs: Path | None = None
    first_rank: int | None = None
    lost: list[OSError] = field(default_factory=list)


def start(plan: Plan) -> Outcome:
    """Run the job of a plan to its end, and return how it ended."""
    job = uuid.uuid4().hex
    with _environment_set(plan.environment | {MARK: job}), guarded_job(plan.folder, job):
        return _run_under_agent(plan, job) if plan.starts_ranks else _run_command(plan, job)


def _say_that_it_ends(folder: Path, job: str) -> None:
    """Tell the ranks of a job, in the folder of its run, that the SIGTERM which they get next is from outside."""
    with contextlib.suppress(OSError):
        path = folder / _ENDING
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=private_opener) as file:  # `Path.open` has no opener
            file.write(job.encode())


@contextlib.contextmanager
def _environment_set(settings: Mapping[str, str]) -> Iterator[None]:
    """Set the environment variables in `settings` inside this context, and restore their earlier values at its end."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _run_command(plan: Plan, job: str) -> Outcome:
    """Run the user's command of `plan` once, and return how it ended.

    `job` is the id of the job; all its processes inherit the id in an environment variable. The exit status of the
    command is not assigned to a rank, because it is not known which ranks the command starts.
    """
    status, interrupted, lost = run_child(plan.words, plan.logs, lambda: _say_that_it_ends(plan.folder, job))
    if interrupted:
        end_processes(job, session=os.getsid(0))  # a shell that a signal ended leaves its children
        return Outcome("interrupted", exit_code=status)
    return Outcome("failed" if status else "completed", exit_code=status, lost=lost)


def _silence_loggers(prefix: str) -> None:
    """Silence the loggers whose names start with `prefix`; the launcher reports the same events itself."""
    # Setting the parent's level is not enough: torch gives each of its loggers a level of its own.
    for name in [prefix, *logging.root.manager.loggerDict]:
        if name.startswith(prefix):
            logging.getLogger(name).setLevel(logging.CRITICAL)


@contextlib.contextmanager
def _in_a_folder() -> Iterator[None]:
    """Return a context in which the working folder exists: torch's mathematics library ends a process without one."""
    if working_folder() is not None:
        yield
        return
    removed = os.open(".", os.O_RDONLY)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(removed)
        os.close(removed)


def _run_under_agent(plan: Plan, job: str) -> Outcome:
    """Start the ranks of a plan under torchrun's elastic agent, wait for their end, and return how they ended.

    Each rank runs a Python module (our trainer or another) or the user's command.
    """
    warnings.filterwarnings("ignore")
    with _in_a_folder():
        from torch.distributed import DistError
        from torch.distributed.elastic.multiprocessing import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _silence_loggers("torch.distributed.elastic")
    _accept_cut_error_files()
    asked = plan.request
    # A user's program prints for its user; our trainer's lines are shown by the display.
    logs = PipedLogs(plan.logs, shown=plan.module is None, prefixed=plan.nproc * asked.nnodes > 1)
    config = LaunchConfig(
        min_nodes=asked.nnodes,
        max_nodes=asked.nnodes,
        nproc_per_node=plan.nproc,
        # The same on all nodes: launchers meet by this name, so a random one would keep them apart.
        run_id="workbench",
        rdzv_backend="c10d",
        rdzv_endpoint=asked.rdzv_endpoint,
        max_restarts=asked.max_restarts,
        monitor_interval=_MONITOR_S,
        logs_specs=logs,
    )
    try:
        with _telling_ranks(config.run_id, lambda: _say_that_it_ends(plan.folder, job)):
            elastic_launch(config, plan.words[0])(*plan.words[1:])
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        # Only a failure names both the global and the local rank of a worker; its log folder has the local rank.
        first = next((rank - failure.local_rank for rank, failure in error.failures.items()), None)
        return Outcome("failed", codes, logs=_launch_folder(logs), first_rank=first)
    # The node that hosts the rendezvous has ended, or was never started.
    except (RendezvousError, DistError) as error:
        note(f"the launchers of the nodes cannot reach each other at {asked.rdzv_endpoint} ({type(error).__name__})")
        return Outcome("failed", logs=_launch_folder(logs))
    # The agent's handlers of SIGTERM and SIGINT raise an exception of its own; before they are set, Ctrl-C is Python's.
    except (KeyboardInterrupt, SignalException):
        return Outcome("interrupted")
    finally:
        logs.close()
    return Outcome("completed", lost=logs.lost)


@contextlib.contextmanager
def _telling_ranks(run_id: str, on_end: Callable[[], None]) -> Iterator[None]:
    """Return a context in which signals are passed on to the ranks of torchrun's agent in this process.

    Each rank leads a session of its own, so the terminal's keys do not reach it. SIGUSR1, SIGUSR2 and SIGQUIT are for
    the ranks alone, and they stop and continue with this process. By other signals the agent ends the ranks; before,
    `on_end` is called. `run_id` is the one of the agent's settings.
    """
    from torch.distributed.elastic.multiprocessing import api

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mark, end = f"TORCHELASTIC_RUN_ID={run_id}".encode(), api._terminate_process_handler  # noqa: SLF001

    def ranks() -> set[int]:
        children = b" ".join(read(path) for path in Path("/proc/self/task").glob("*/children"))
        return {int(pid) for pid in children.split() if mark in read(Path("/proc", pid.decode(), "environ"))}

    def pass_on(number: int, _frame: FrameType | None) -> None:
        send(ranks(), signal.Signals(number))

    def stop(number: int, _frame: FrameType | None) -> None:
        with_handler = {pid for pid in ranks() if has_handler(pid, number)}
        send(with_handler, signal.Signals(number))
        # The kernel drops this signal where no parent is in the same session.
        send(ranks() - with_handler, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def quit_or_end(signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGQUIT:
            pass_on(signum, frame)
        else:
            on_end()
            end(signum, frame)

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]
    handlers = dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGCONT), pass_on)
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        handlers[signal.SIGTSTP] = stop
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    # The agent installs its handler when it starts the ranks, of SIGQUIT, too.
    api._terminate_process_handler = quit_or_end  # noqa: SLF001
    try:
        yield
    finally:
        api._terminate_process_handler = end  # noqa: SLF001
        for number, handler in before.items():
            signal.signal(number, handler)


def _accept_cut_error_files() -> None:
    """Let torchrun's agent ignore an incomplete error file, which a rank leaves if it is killed while it writes.

    Otherwise the agent would end with an exception of its JSON parser, and the exit codes of the ranks would be lost.
    """
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    read_file: Callable[[ProcessFailure], None] = ProcessFailure.__post_init__
    if read_file.__module__ == __name__:
        return

    def read_whole_file(failure: ProcessFailure) -> None:
        try:
            read_file(failure)
        except (ValueError, KeyError, TypeError, AttributeError):
            path, failure.error_file = failure.error_file, ""
            read_file(failure)
            failure.error_file = path

    # The agent creates these objects itself, and has no setting for how they read the file.
    ProcessFailure.__post_init__ = read_whole_file  # type: ignore[method-assign]


def _launch_folder(logs: object) -> Path | None:
    """Return the log folder that torchrun has created for this launch; None before it exists.

    `logs` is torchrun's `LogsSpecs` object.
    """
    made = getattr(logs, "_run_log_dir", None)
    return Path(made) if made else None
