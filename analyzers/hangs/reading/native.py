"""Read the pickle of a Flight Recorder dump with the native reader, without most of the entries that are done."""

from typing import IO, Any

from analyzers.native_readers import native_module


class NativeDump(dict[str, Any]):
    """A dump as `reader` needs it: it lacks `left_out` entries.

    These are done, older than the first entry that is not done and than the last ones, neither the first nor the last
    of their process group, and close no launch of a later entry. Entries from the first one on that is not done, and
    the last ones, are in `recent` instead of among the entries, unless it is None.
    """

    def __init__(self, content: dict[str, Any], left_out: int, recent: dict[str, Any] | None) -> None:
        super().__init__(content)
        self.left_out = left_out
        self.recent = recent


def read_natively(stream: IO[bytes], tail: int) -> NativeDump | None:
    """Return a dump with at least its last `tail` entries.

    The result is None if there is no native reader, or if it does not understand the file.
    """
    module = native_module()
    made = module.read_dump(stream, tail) if module else None
    if made is None:
        return None
    content, (left_out, recent) = made
    return NativeDump(content, left_out, recent)
