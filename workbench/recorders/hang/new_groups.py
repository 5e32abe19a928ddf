"""Record each process group that this rank creates, with its ranks, the time and the call stack.

PyTorch numbers the groups of a rank in the order of creation, and the members of a group find each other by this
number. Suppose that one rank omits a call of `new_group`, even for a group to which it does not belong. Then all its
later groups have wrong numbers and connect it to the wrong ranks. Each call is recorded before it is made, because a
Flight Recorder dump does not contain a group whose creation hangs.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import torch.distributed as dist

from workbench.recorders.memory.snapshot import Frame
from workbench.recorders.own_files import OwnFile, harmless, remove_file

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
