"""Run a planned job to its end: start its ranks with torchrun's elastic agent, or run the user's command once."""

import contextlib
import logging
import os
import signal
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from analyzers.files import private_opener
from workbench.console import note
from workbench.launch.guard import guarded_job
from workbench.launch.plan import Plan
from workbench.launch.processes import MARK, end_processes, has_handler, read, run_child, send
from workbench.python_path import working_folder

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

        from workbench.launch.rank_output import PipedLogs

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
    the ranks alone, and they stop and continue with this process. By the first of other signals the agent ends the
    ranks; before, `on_end` is called. Those that follow are for the ranks alone, too: they would end the agent while
    it waits for the ranks, which may be saving their state, and leave them running. `run_id` is the one of the agent's
    settings.
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

    ending: list[int] = []

    def quit_or_end(signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGQUIT or ending:
            pass_on(signum, frame)
        else:
            ending.append(signum)
            on_end()
            end(signum, frame)

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]]
    handlers = dict.fromkeys((signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGCONT), pass_on)
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        handlers[signal.SIGTSTP] = stop
    before = {number: signal.getsignal(number) for number in (*handlers, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in handlers.items():
        signal.signal(number, handler)
    # The agent installs its handler when it starts the ranks, of SIGQUIT, too.
    api._terminate_process_handler = quit_or_end  # noqa: SLF001
    try:
        yield
    finally:
        api._terminate_process_handler = end  # noqa: SLF001
        for number, earlier in before.items():
            if earlier is not None:  # else not Python's
                signal.signal(number, earlier)


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
