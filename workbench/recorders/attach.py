"""Two lines make any training script answer when it hangs:

    from workbench import recorders
    recorders.start("outputs")          # on every rank, after init_process_group

The steps of a foreign script are not known, so what counts as its heartbeat is that it issues collectives.
"""

import atexit
import logging
import os
import sys
import threading
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist

from workbench.recorders.files import Place
from workbench.recorders.hang.flight_recorder import FlightRecorder
from workbench.recorders.hang.heartbeat import DONE, Heartbeat

LOOKS_A_TIMEOUT = 40
LOOK_AT_MOST_S = 1.0
ALWAYS_ON_SINCE = (2, 11)
logger = logging.getLogger(__name__)


def start(folder: str | Path = "outputs", *, timeout_s: float | None = None) -> "Attached":
    """Serve dumps of this rank from now on, and have them collected into `folder`/dumps when the job hangs or dies.

    `timeout_s` is that of the job's collectives, by default the one of its default group: dumps are taken well before.
    Errors that end the script are recorded too. A second call returns what the first one made.
    """
    if Attached.now is None:
        Attached.now = Attached(Path(folder), default_timeout() if timeout_s is None else timeout_s)
    return Attached.now


def default_timeout() -> float:
    """Seconds after which a collective of the default group gives up."""
    group = dist.distributed_c10d._get_default_group()  # noqa: SLF001
    return float(group._get_backend(group._device_types[0]).options._timeout.total_seconds())  # noqa: SLF001


class Attached:
    """The recorder inside a script that knows nothing of it."""

    now: "Attached | None" = None

    def __init__(self, folder: Path, timeout_s: float) -> None:
        warn_without_ring()
        FlightRecorder.prepare(folder)
        self._heart = Heartbeat(folder / "steps" / f"heartbeat_{Place.here().rank}.bin")
        self._heart.beat(0, b"running")
        self.flight = FlightRecorder(folder, init_timeout_s=timeout_s, train_timeout_s=timeout_s)
        self.flight.start()
        self._pause_s = min(LOOK_AT_MOST_S, timeout_s / LOOKS_A_TIMEOUT)
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="workbench-pulse", daemon=True).start()
        self._previous_hook = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self.close)

    def close(self) -> None:
        """Mark a clean end. It happens by itself where the script ends by itself, but not before an `os._exit`."""
        if not self._ended.is_set():
            self._ended.set()
            self._heart.beat(0, DONE.encode())
            self.flight.close()

    def _watch(self) -> None:
        """Beat when new collectives are found. A stuck rank finds none, one that holds the GIL does not even look."""
        before: dict[str, int] = {}
        while not self._ended.wait(self._pause_s):
            try:
                now = self.flight.sequences()
                self.flight.refresh()
            except (RuntimeError, KeyError):  # groups come and go on the main thread
                continue
            if now != before:
                self._heart.beat(0, b"running")
            before = now

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The last act of a failing script: nobody could ask it for its dump afterwards."""
        self._ended.set()
        self._previous_hook(kind, error, trace)
        self.flight.failed(error.with_traceback(trace))


def warn_without_ring() -> None:
    """PyTorch read the size of the ring when the process group was made."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    sizes = (os.environ.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    size = next((size for size in sizes if size), "2000" if version >= ALWAYS_ON_SINCE else "0")
    if size == "0":
        logger.warning("Flight Recorder is off: set TORCH_FR_BUFFER_SIZE=20000 before init_process_group")
