"""Number the process groups, signatures and stacks in the entries of a set of dumps."""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import msgspec

from analyzers.hangs.reading.dump_entry import Entry, frame, group_name, signature

Value = TypeVar("Value", bound=Hashable)
Frame = tuple[str, str, int]

SIGNED = ("profiling_name", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
"""The fields of an entry that make up its signature."""


class Interned(Generic[Value]):
    """Numbers distinct values from 0, in order of appearance; calling it with a value returns the value's number."""

    def __init__(self) -> None:
        self.numbers: dict[Value, int] = {}

    def __call__(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def values(self) -> list[Value]:
        """Return the values in the order of their numbers."""
        return list(self.numbers)


class Numbering:
    """Numbers the process groups, signatures and stacks of all dumps of a set, each from 0 in order of appearance.

    The entries of a pickle share the objects in their fields. So the number of an object that was seen before in the
    same dump is found by its address, without looking at its content. The addresses are valid until `begin_dump`.
    """

    def __init__(self) -> None:
        self.groups = Interned[tuple[str, str]]()
        self.signatures = Interned[tuple[Any, ...]]()
        self.stacks = Interned[tuple[Frame, ...]]()
        self.written_signatures: dict[str, int] = {}
        self.packed_signatures: dict[bytes, int] = {}
        self.packed_stacks: dict[bytes, int] = {}
        self.begin_dump()

    def begin_dump(self) -> None:
        """Forget all addresses."""
        self.group_at: dict[int, int] = {}
        self.frame_at: dict[int, Frame | None] = {}
        self.stack_at: dict[tuple[int, ...], int] = {}
        self.signature_at: dict[tuple[int, ...], int] = {}

    def group(self, entry: Entry) -> int:
        """Return the number of an entry's process group."""
        return self.group_of_value(entry.get("process_group"))

    def group_of_value(self, value: object) -> int:
        """Return the number of the process group in a field of an entry."""
        address = id(value)
        number = self.group_at.get(address)
        if number is None:
            number = self.group_at[address] = self.groups(group_name(value))
        return number

    def stack(self, entry: Entry) -> int:
        """Return the number of an entry's stack."""
        value = entry.get("frames")
        if not isinstance(value, (list, tuple)):
            return self.stacks(())
        addresses = tuple(map(id, value))
        number = self.stack_at.get(addresses)
        if number is None:
            number = self.stack_at[addresses] = self.stacks(tuple(filter(None, map(self.frame, value))))
        return number

    def frame(self, value: object) -> Frame | None:
        """Return a (function, file, line) tuple for a frame of a stack; None if it is no frame."""
        address = id(value)
        if address not in self.frame_at:
            self.frame_at[address] = frame(value)
        return self.frame_at[address]

    def signature(self, entry: Entry) -> int:
        """Return the number of an entry's signature: its name, shapes and dtypes."""
        values = [entry.get(key) for key in SIGNED]
        addresses = tuple(map(id, values))
        number = self.signature_at.get(addresses)
        if number is None:
            number = self.signature_at[addresses] = self.written_signature(values, entry)
        return number

    def written_signature(self, values: list[Any], entry: Entry) -> int:
        """Return the number of an entry's signature, whose fields `SIGNED` have these values."""
        # Most are known, and writing one as text is cheaper than normalizing it again.
        written = str(values)
        number = self.written_signatures.get(written)
        if number is None:
            number = self.written_signatures[written] = self.signatures(signature(entry))
        return number

    def packed_signature(self, packed: bytes) -> int:
        """Return the number of a signature, whose five values are given in MessagePack, one after the other."""
        number = self.packed_signatures.get(packed)
        if number is None:
            # 95 begins a list of five.
            values: list[Any] = msgspec.msgpack.decode(b"\x95" + packed)
            entry = dict(zip(SIGNED, values, strict=True))
            number = self.packed_signatures[packed] = self.written_signature(values, entry)
        return number

    def packed_stack(self, packed: bytes) -> int:
        """Return the number of a stack, whose list of frames is given in MessagePack."""
        number = self.packed_stacks.get(packed)
        if number is None:
            frames = map(frame, msgspec.msgpack.decode(packed))
            number = self.packed_stacks[packed] = self.stacks(tuple(filter(None, frames)))
        return number
