"""Save what each rank was doing when a job hangs or dies: Flight Recorder dump, Python stacks and process groups.

In any training script, after `init_process_group`:

    flight = FlightRecorder("outputs")
    flight.start()

A collector process on each node takes dumps of the node's ranks, into `outputs/dumps`, when a rank dies or when its
heartbeat stops, so the dumps also come from a rank that hangs. A `StepRecorder` in the same folder writes the
heartbeat. In an `except` block call `failed(error)` before you raise the error again.
"""

import contextlib
import ctypes
import functools
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from workbench.recorders import automatic, signals
from workbench.recorders.files import ENDING, JOB_VARIABLE, RankInfo, private_opener, read_regular, remove_other
from workbench.recorders.hang.rank_exit import FatalSignalFile, TerminationDelay, ThreadErrorFile, exit_report
from workbench.recorders.hang.rank_process import PROC_IS_THERE, listens, start_ticks
from workbench.recorders.hang.send_recv_counts import SendRecvCounts
from workbench.recorders.memory.snapshot import Frame
from workbench.recorders.own_files import (
    OwnFile,
    harmless,
    high_descriptor,
    make_folder,
    note,
    remove_file,
    save_bytes,
    save_json,
)
from workbench.recorders.quiet import torch_warnings_hidden

_NAMING = "_process_group_name"
"""The function of PyTorch that names a new group.

`new_group`, `new_subgroups` and device meshes call it once per group.
"""
_MAX_CALLS = 4096
_MAX_FRAMES = 24

Name = Callable[[Sequence[int], bool], str]


class NewGroups:
    """Records each process group that is created after `install`: a line of a file with ranks, time and stack."""

    def __init__(self, path: Path) -> None:
        self._path = path
        remove_file(path)
        self._file: OwnFile | None = None
        self._calls = 0
        self._original: Name | None = None

    def install(self) -> None:
        """Wrap the PyTorch function that names new groups, so that each new group is recorded.

        Do nothing if this version of PyTorch does not have the function.
        """
        self._original = getattr(dist.distributed_c10d, _NAMING, None)
        if self._original:
            setattr(dist.distributed_c10d, _NAMING, self._naming(self._original))

    def remove(self) -> None:
        """Restore PyTorch's original function that names new groups."""
        if self._original:
            setattr(dist.distributed_c10d, _NAMING, self._original)

    def _naming(self, original: Name) -> Name:
        def name_group(ranks: Sequence[int], use_hashed_name: bool) -> str:
            name = original(ranks, use_hashed_name)
            # Groups with hashed names are made by their members alone.
            if not use_hashed_name and self._calls < _MAX_CALLS:
                self._calls += 1
                # `inspect` would read source files for each frame.
                self._write(name, ranks, sys._getframe(1))  # noqa: SLF001
            return name

        return name_group

    @harmless
    def _write(self, name: str, ranks: Sequence[int], caller: FrameType) -> None:
        line = {"name": name, "ranks": list(ranks), "time_ns": time.time_ns(), "frames": _frames_above(caller)}
        self._file = self._file or OwnFile(self._path, append=True)
        self._file.append(json.dumps(line).encode() + b"\n")


def _frames_above(frame: FrameType | None) -> list[Frame]:
    """Return the call stack of `frame`, innermost frame first."""
    frames: list[Frame] = []
    while frame and len(frames) < _MAX_FRAMES:
        code = frame.f_code
        frames.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return frames


_COLLECTOR_TIMEOUT_S = 15.0
_SPARE_DESCRIPTORS = 4
c10d: Any = _distributed_c10d  # its type stubs lag behind
world: Any = dist.distributed_c10d._world  # noqa: SLF001
_sequence_number = c10d.ProcessGroup._get_sequence_number_for_group  # noqa: SLF001
_ORPHAN = "import os, sys; os.fork() and os._exit(0); os.execv(sys.argv[1], sys.argv[1:])"
"""A program that starts the command in its arguments as a process whose parent has ended."""
CHECKPOINT_GROUP = "checkpoint"
"""The description of a process group that saves checkpoints on a thread of its own, beside the training."""


def dump_ring() -> bytes:
    """Return the content of Flight Recorder's ring buffer as a pickle, for the backend in use (NCCL or another)."""
    dump = getattr(c10d, "_dump_nccl_trace", None) if "nccl" in dist.get_backend() else None
    return bytes((dump or c10d._dump_fr_trace)())  # noqa: SLF001


def _process_groups() -> dict[str, dict[str, object]]:
    """Return every process group of this rank, as {name: {"desc": description, "ranks": global ranks}}.

    They are read from torch.distributed, because the list of groups in a Flight Recorder dump is wrong on gloo.
    """
    world = dist.distributed_c10d._world  # noqa: SLF001
    return {
        name: {"desc": group.group_desc, "ranks": sorted(world.pg_group_ranks[group])}
        for group, name in world.pg_names.items()
    }


class Response(Protocol):
    """The interface of a response of PyTorch's worker server, an HTTP server in each rank; only what is used here."""

    def set_content(self, content: bytes, content_type: str) -> None: ...
    def set_status(self, status: int) -> None: ...


def _answer_trace(_request: object, response: Response) -> None:
    """Answer an HTTP request for the Flight Recorder dump with stack frames.

    This runs on the thread of PyTorch's worker server and needs the GIL.
    """
    response.set_content(dump_ring(), "application/octet-stream")
    response.set_status(200)


@functools.cache
def _warn_of_own_calls() -> None:
    """Say, once in a process, that its dumps will be useless: each new process group would say it again."""
    note("TORCH_DISTRIBUTED_DEBUG=DETAIL fills the Flight Recorder with its own calls: dumps will be useless")


class FlightRecorder:
    """Makes dumps of this rank available to the collector of its node, which stores them in `folder`/dumps."""

    def __init__(self, folder: str | Path, *, init_timeout_s: float = 300.0, train_timeout_s: float = 100.0) -> None:
        self._folder = Path(folder).absolute()
        self._dumps = self._folder / "dumps"
        self._rank_info = RankInfo.here()
        self._timeouts = (init_timeout_s, train_timeout_s)
        self._request = self._dumps / f".ask_{self._rank_info.rank}.json"
        # Not in the run's folder, whose path may be long: that of a Unix socket has at most 107 bytes.
        self._socket_home = tempfile.mkdtemp(prefix="wb_")
        self._written: tuple[int, int | None] | None = None
        self._stack_signal: int | None = None
        self._server: Any = None
        self._messages: SendRecvCounts | None = None
        self._new_groups: NewGroups | None = None
        self._fatal_signal: FatalSignalFile | None = None
        self._thread_error: ThreadErrorFile | None = None
        self._spare: list[int] = []
        self._termination_delay = TerminationDelay(self._ask_unless_ending)

    @staticmethod
    def prepare(folder: str | Path, buffer: int = 20000) -> None:
        """Set the environment variables of Flight Recorder, which PyTorch reads when the process group is created.

        `buffer` is the number of collectives that the ring buffer keeps. Variables that the user has set do not change.
        """
        late = Path(folder).absolute() / "dumps" / "watchdog"
        for name, value in (
            ("TORCH_FR_BUFFER_SIZE", str(buffer)),
            ("TORCH_FR_DUMP_TEMP_FILE", str(late / "rank_")),
            ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1"),
        ):
            os.environ.setdefault(name, value)
        if torch.cuda.is_available():
            make_folder(late)  # NCCL's watchdog makes no folder
        if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
            _warn_of_own_calls()

    def start(self) -> None:
        """Make dumps of this rank available from now on; on local rank 0, also start the collector of the node."""
        automatic.give_way_to_flight()
        self._dumps.mkdir(parents=True, exist_ok=True)
        # A request of an earlier attempt must not count for this one.
        remove_file(self._request)
        self._stacks = OwnFile(self._dumps / f".stacks_{self._rank_info.rank}.txt")
        if self._stacks.descriptor >= 0:
            self._stack_signal = signals.free_signal()
        if self._stack_signal is not None:
            signals.write_stacks_on(self._stack_signal, self._stacks.descriptor)
        rank = self._rank_info.rank
        for name in (f"new_groups_{rank}.jsonl", f".p2p_{rank}.bin", ".collector.log"):
            remove_other(self._dumps / name)
        self._spare = [high_descriptor(os.open(os.devnull, os.O_RDONLY)) for _ in range(_SPARE_DESCRIPTORS)]
        self._fatal_signal = FatalSignalFile(self._dumps / f"crash_{rank}.txt")
        self._thread_error = ThreadErrorFile(self._dumps / f"thread_{rank}.json", rank)
        importlib.import_module("torch._dynamo")  # otherwise the first dump with frames imports it, in seconds
        with signals.ignoring(RuntimeError):  # registered before, in this process
            c10d._register_handler("workbench_fr_trace", _answer_trace)  # noqa: SLF001
            # PyTorch frees the function after Python's end, which aborts the process if this was the last reference.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(_answer_trace))
        self._start_server()
        self.refresh()
        if self._rank_info.world_size > 1:  # a single rank has no others whose end it could explain
            self._termination_delay.install()
        self._messages = SendRecvCounts(self._dumps / f".p2p_{self._rank_info.rank}.bin")
        if "gloo" in dist.get_backend():  # NCCL records them itself
            self._messages.install()
        self._messages.install_roots()
        self._new_groups = NewGroups(self._dumps / f"new_groups_{self._rank_info.rank}.jsonl")
        self._new_groups.install()
        if self._rank_info.local_rank == 0:
            self._start_collector()

    def _start_server(self) -> None:
        """Start PyTorch's worker server, an HTTP server on a thread of this process.

        It makes the process ignore SIGPIPE. A script that wants to end by SIGPIPE has no server, because that would
        end it, too, when a client closes a connection.
        """
        if signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL:
            return
        with torch_warnings_hidden(), signals.kept(signal.SIGPIPE), signals.not_for_new_threads():
            self._server = c10d._WorkerServer(f"{self._socket_home}/rank")  # noqa: SLF001
        # A forked child must not free it at its end: that would stop the server of its parent.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))

    def refresh(self) -> None:
        """Write `groups_R.json` of this rank (R) again if what it says has changed; else do nothing.

        The file has the process groups of the rank, its process id and start time, the address of its HTTP server, and
        the signal after which it writes its stacks: none if the script has taken that signal.
        """
        if self._stack_signal is not None and not signals.is_ours(self._stack_signal):
            self._stack_signal = None
        state = (len(dist.distributed_c10d._world.pg_names), self._stack_signal)  # noqa: SLF001
        if state == self._written:
            return
        rank_info = self._rank_info
        is_written = save_json(
            self._dumps / f"groups_{rank_info.rank}.json",
            {
                "schema": "workbench.groups/1",
                "rank": rank_info.rank,
                "world_size": rank_info.world_size,
                "local_rank": rank_info.local_rank,
                "host": rank_info.host,
                "pid": rank_info.pid,
                "start_ticks": start_ticks(rank_info.pid),
                "stack_signal": self._stack_signal,
                "attempt": rank_info.attempt,
                "error_file": os.environ.get("TORCHELASTIC_ERROR_FILE"),
                "torch": torch.__version__,
                "backend": dist.get_backend(),
                "server": f"{self._socket_home}/rank" if self._server is not None else "",
                "written_ns": time.time_ns(),
                "groups": _process_groups(),
            },
        )
        self._written = state if is_written else None

    def sequences(self) -> dict[str, int]:
        """Return {group name: sequence number of the last collective that this rank issued in the group}.

        If the number of process groups has changed, `groups_R.json` is written again.

        The caller compares two results to see whether the rank makes progress. Two kinds of groups are left out. Some
        have no sequence numbers, such as groups of one rank with the backend `fake`, which torchtitan makes. And a
        group that saves checkpoints is used by another thread, so its number says nothing about the step.
        """
        found: dict[str, int] = {}
        # A copy, because the main thread may create groups meanwhile.
        groups = list(world.pg_names.items())
        if groups and self._written is not None and len(groups) != self._written[0]:
            self.refresh()
        for group, name in groups:
            try:
                if group.group_desc != CHECKPOINT_GROUP:
                    found[name] = _sequence_number(group)
            except RuntimeError as error:
                signals.raise_of_script(error)
                continue
        return found

    def failed(self, error: BaseException, *, step: int = 0, phase: str = "") -> None:
        """Write `exit_R.json` about the error that ends this rank (R), and wait until the node's dumps are taken.

        `step` and `phase` say where the rank was. If no dumps are taken in time, this rank writes its own dump.
        """
        rank = self._rank_info.rank
        self._free_descriptors()
        save_json(self._dumps / f"exit_{rank}.json", exit_report(error, rank=rank, step=step, phase=phase))
        own = self._dumps / f"rank_{rank}"
        asked = isinstance(error, Exception) and self.ask("failed", f"rank {rank}: {type(error).__name__}")
        if isinstance(error, Exception) and not asked and not own.exists():  # a dump from before the error says more
            save_bytes(own, dump_ring())

    def _free_descriptors(self) -> None:
        """Close the file descriptors opened in reserve, so that a process at its limit of open files can write."""
        while self._spare:
            with signals.ignoring(OSError):  # the script has closed it
                os.close(self._spare.pop())

    def ask(self, reason: str, detail: str) -> bool:
        """Request dumps of this node's ranks from the node's collector; return whether they were taken in time.

        `reason` is "failed" or "asked", and `detail` is a sentence about it, as in the collector's `Cause`.
        """
        if not save_json(self._request, {"reason": reason, "detail": detail, "time_ns": time.time_ns()}):
            return False
        deadline = time.monotonic() + _COLLECTOR_TIMEOUT_S
        while self._request.exists():
            if time.monotonic() > deadline:
                remove_file(self._request)
                return False
            time.sleep(0.05)
        return True

    def _ask_unless_ending(self) -> None:
        """Request dumps because of SIGTERM, unless the launcher says that it comes from a person or scheduler.

        Then no rank is to blame, and this one ends as soon as it would without recorders.
        """
        with signals.ignoring(OSError):
            if read_regular(self._dumps / ENDING).decode() == os.environ.get(JOB_VARIABLE):
                return
        self.ask("asked", "terminated by SIGTERM")

    def stop_serving(self) -> None:
        """Stop the HTTP server of this rank before the process ends; afterwards no dumps can be requested.

        Otherwise the process would abort if it ended while a thread of the server waits for the GIL.
        """
        # If the script has closed the server's socket, the server would never notice that it shall stop.
        is_open = not PROC_IS_THERE or listens(os.getpid(), f"{self._socket_home}/rank")
        if self._server is not None and is_open:
            with torch_warnings_hidden():
                self._server.shutdown()

    def close(self) -> None:
        """Stop the HTTP server and remove all hooks at a clean end, before the process group is destroyed.

        Hooks that could not be installed are left out.
        """
        self._free_descriptors()
        self._termination_delay.remove()
        if self._messages:
            self._messages.remove()
        if self._new_groups:
            self._new_groups.remove()
        self.stop_serving()
        # Not closed: faulthandler keeps the descriptor, which a file of the script could get, if the script has taken
        # the signal with faulthandler itself.
        if self._stack_signal is not None:
            signals.release(self._stack_signal)
        if self._fatal_signal:
            self._fatal_signal.close()
        if self._thread_error:
            self._thread_error.close()
        shutil.rmtree(self._socket_home, ignore_errors=True)

    def _start_collector(self) -> None:
        info, (init, train) = self._rank_info, self._timeouts
        command = [
            *(sys.executable, "-P", "-m", "workbench.recorders.hang.collector", str(self._folder)),
            *("--first-rank", str(info.rank), "--ranks", str(info.local_world_size), "--attempt", str(info.attempt)),
            *("--init-timeout", str(init), "--train-timeout", str(train), "--started-by", str(info.pid)),
        ]
        # A script that waits for "any child" must not meet the collector, so it becomes a child of init. But a script
        # with a handler of SIGCHLD would be told of the process in between.
        is_orphan = signal.getsignal(signal.SIGCHLD) in (signal.SIG_DFL, signal.SIG_IGN)
        if is_orphan:
            command = [sys.executable, "-I", "-S", "-c", _ORPHAN, *command]
        # With -P and our folder first, no module in the user's folder is imported in place of ours.
        root = str(Path(__file__).resolve().parents[3])
        search = os.pathsep.join([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
        with contextlib.ExitStack() as stack:
            log: Any = subprocess.DEVNULL
            with signals.ignoring(OSError):
                log = stack.enter_context(open(self._dumps / ".collector.log", "ab", opener=private_opener))
            process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": search},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # torchrun ends a worker together with its process group, which must not include the collector.
                start_new_session=True,
            )
        if is_orphan:
            process.wait()
        else:
            process.returncode = 0  # otherwise `Popen` warns that it still runs
