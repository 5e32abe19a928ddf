"""Interned texts, frames and stacks: a snapshot repeats a few hundred of them a million times."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from analyzers.columns import Column

Frames = list[Any]
NO_FRAMES: Frames = []
ALIKE_AT_MOST = 8


class Numbered(NamedTuple):
    """Stands in a list of frames that has a number."""

    number: int


def line_number(line: int) -> int:
    """The line; some recorders write -1 as an unsigned number where none is known."""
    return line if 0 <= line < 1 << 31 else 0


class Texts:
    """Numbers for texts; 0 is the empty one."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {"": 0}

    def number(self, text: object) -> int:
        """The number of a text.

        Raises:
            TypeError: It is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"a text is expected where {type(text).__name__} stands")
        return self.known.setdefault(text, len(self.known))

    def columns(self) -> dict[str, Column]:
        """All texts as UTF-8, one behind the other, and where each ends."""
        encoded = [text.encode("utf-8", "replace") for text in self.known]
        return {
            "text_bytes": np.frombuffer(b"".join(encoded), np.uint8),
            "text_end": np.cumsum([len(text) for text in encoded], dtype=np.int64),
        }


class Places:
    """Numbers for (stream, pool) pairs: where a block may be reused. A pool that nobody tells is `UNTOLD`."""

    UNTOLD = (-1, -1)

    def __init__(self) -> None:
        self.known: dict[tuple[int, int, int], int] = {}

    def number(self, stream: int, pool: Sequence[int] | None) -> int:
        first, second = self.UNTOLD if pool is None else pool
        return self.known.setdefault((stream, int(first), int(second)), len(self.known))

    def numbers(self, streams: Column, pools: Sequence[Sequence[int] | None]) -> Column:
        """The place of each row, int32. Torch writes the pool of an entry since 2.12."""
        first = streams[0] if len(streams) else 0
        if pools.count(None) == len(pools) and (streams == first).all():
            return np.full(len(pools), self.number(int(first), None) if len(pools) else 0, np.int32)
        return np.fromiter(map(self.number, streams.tolist(), pools), np.int32, len(pools))

    def columns(self) -> dict[str, Column]:
        table = np.array(list(self.known), np.int64).reshape(-1, 3)
        return {"place_stream": table[:, 0], "place_pool": table[:, 1:]}


class Stacks:
    """Numbers for stacks of frames; 0 is the empty one.

    Recorders share the frame and list objects, so looking at identities first spares reading the same frames a
    thousand times; where they are not shared (JSON) the contents decide. In a list that has its number that stands in
    place of the frames, which spares room.
    """

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self.frames: dict[tuple[int, int, int], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {(): 0}
        self._frame_of: dict[int, tuple[int, dict[str, Any]]] = {}  # holds the frame: its identity stays its own
        self._alike: dict[tuple[int, ...], list[tuple[Frames, Numbered]]] = {}

    def numbers(self, lists: Sequence[Frames | None]) -> Column:
        """The stack number of each list of frames, int32."""
        return np.fromiter(map(self.number, lists), np.int32, len(lists))

    def number(self, frames: Frames | None) -> int:
        """The number of a stack, whose frames are dropped."""
        if not frames:
            return 0
        first = frames[0]
        if type(first) is Numbered:
            return first.number
        # A sample of the identities finds the few lists worth comparing: a third of the time that all of them take.
        count = len(frames)
        sample = (count, id(first), id(frames[count >> 2]), id(frames[count >> 1]))
        found = self._same(frames, self._alike.setdefault(sample, []))
        frames[:] = (found,)
        return found.number

    def _same(self, frames: Frames, alike: list[tuple[Frames, Numbered]]) -> Numbered:
        for known, found in alike:
            if known == frames:
                return found
        contents = tuple(self.frame(frame) for frame in frames)
        found = Numbered(self.stacks.setdefault(contents, len(self.stacks)))
        if len(alike) < ALIKE_AT_MOST:
            alike.append((frames.copy(), found))
        return found

    def frame(self, frame: dict[str, Any]) -> int:
        found = self._frame_of.get(id(frame))
        if found is None:
            name, file = (self.texts.number(frame.get(key, "")) for key in ("name", "filename"))
            contents = (name, file, line_number(frame.get("line", 0)))
            found = self._frame_of[id(frame)] = self.frames.setdefault(contents, len(self.frames)), frame
        return found[0]

    def columns(self) -> dict[str, Column]:
        """The frames as three columns; the stacks as frame numbers, one behind the other, and where each ends."""
        table = np.array(list(self.frames), np.int64).reshape(-1, 3)
        return {
            "frame_name": table[:, 0],
            "frame_file": table[:, 1],
            "frame_line": table[:, 2],
            "stack_frames": np.array([frame for stack in self.stacks for frame in stack], np.int32),
            "stack_end": np.cumsum([len(stack) for stack in self.stacks], dtype=np.int64),
        }


class Interned:
    """What the other tables of a snapshot refer to by number."""

    def __init__(self) -> None:
        self.texts = Texts()
        self.stacks, self.places = Stacks(self.texts), Places()

    def columns(self) -> dict[str, Column]:
        """Of all of them."""
        return self.places.columns() | self.stacks.columns() | self.texts.columns()
