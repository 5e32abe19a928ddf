"""Copy the output of the ranks to the terminal and to their log files, through pipes.

torchrun's agent would let each rank write its log file itself. Where the disk is full, a `print` of the script would
then raise an exception, and end a job that does not need that disk. This process only loses the log.
"""

import contextlib
import fcntl
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std

from analyzers.files import private_opener
from workbench.console import note
from workbench.launch.own_folder import temporary_folder, usable_folder
from workbench.launch.processes import as_system_error

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
