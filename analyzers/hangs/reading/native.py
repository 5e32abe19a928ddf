"""Read a Flight Recorder dump with the native reader, which skips most of the completed entries."""

from typing import IO, Any

from analyzers.native import native_module


class NativeDump(dict[str, Any]):
    """A dump in the form that `reader` needs; `left_out` entries of the file are missing in it.

    A missing entry is done. It is older than the first entry that is not done, and older than the last entries. It is
    neither the first nor the last of its process group, and does not close a launch of a later entry. The last entries,
    and all entries from the first one that is not done, are in `recent` instead of among the entries, unless `recent`
    is None.
    """

    def __init__(self, content: dict[str, Any], left_out: int, recent: dict[str, Any] | None) -> None:
        super().__init__(content)
        self.left_out = left_out
        self.recent = recent


def read_natively(pickled: IO[bytes], tail: int) -> NativeDump | None:
    """Return the dump that a pickle holds, with at least its last `tail` entries.

    The result is None if there is no native reader, or if it does not understand the file.
    """
    module = native_module()
    return _native_dump(module.read_dump(pickled, tail) if module else None)


def read_json_natively(text: bytes, tail: int) -> NativeDump | None:
    """Return the dump that a JSON text holds; see `read_natively`."""
    module = native_module()
    return _native_dump(module.read_json_dump(text, tail) if module else None)


def _native_dump(made: Any) -> NativeDump | None:
    """Return what the native reader made of a dump; None if it made nothing."""
    if made is None:
        return None
    content, (left_out, recent) = made
    return NativeDump(content, left_out, recent)
