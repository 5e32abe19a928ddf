"""Define the messages between the sender of a node and the receiver: parcels with parts of files, and replies.

Both are msgpack with a fixed structure, so a message cannot contain anything but these fields.
"""

import msgspec

PATH = "/v1/parcels"
SIGNATURE = "X-Workbench-Signature"
PARCEL_BYTES = 8 << 20
"""The size in bytes of the longest message that a receiver reads."""
PART_BYTES = 1 << 20
"""The most bytes of one file in a part of a parcel."""
FULL_BYTES, FULL_PARTS = 4 << 20, 256
"""The number of bytes or of parts with which a sender closes a parcel."""
TAIL_BYTES = 4096
"""The number of bytes before a continued part that are compared, to notice that another file has taken its place."""


class Part(msgspec.Struct, array_like=True):
    """A part of a file: `data` belongs at `offset` of the file `path`, whose whole size is `size`.

    `version` identifies the content from which the part comes. It is empty for a file that only grows. Such a part is
    appended if the last bytes before `offset` have the checksum `before`.
    """

    path: str
    offset: int
    size: int
    mtime_ns: int
    version: str
    before: str
    data: bytes


class Incident(msgspec.Struct, array_like=True, frozen=True):
    """A set of dumps that a node's collector took by itself: the reason, and the time (Unix nanoseconds)."""

    reason: str
    detail: str
    asked_ns: int


class Parcel(msgspec.Struct, array_like=True):
    """A message of a sender; `number` counts the messages, so that nobody can send an old message again.

    `session` is a random name of the node's run folder; the receiver recognises by it a sender that was started again.
    `ended` says that the job of the node has ended and all of its files have been sent. `at_home` says that the node
    sends no files, because its run folder is the home folder. `incident` is the last set of dumps that the node has
    begun to take.
    """

    node: str
    session: str
    number: int
    host: str
    ended: bool
    at_home: bool
    incident: Incident | None
    parts: list[Part]


class Result(msgspec.Struct, array_like=True):
    """The result for a part: the receiver now has the first `have` bytes of the file.

    `differs` says that these bytes differ from the sender's bytes, so that the file must be sent as a whole. `refused`
    is the reason why the file is not accepted; empty if it is accepted.
    """

    have: int = 0
    differs: bool = False
    refused: str = ""


class Reply(msgspec.Struct, array_like=True):
    """The answer to a parcel: a `Result` for each part, and the number of seconds to wait before the next parcel.

    `home` is the id of the receiver's folder, by which a sender notices that both share a disk. `ask` is an incident on
    another node, because of which this node shall take dumps too. `number` is the number of the parcel.
    """

    number: int
    home: str
    next_s: float
    ask: Incident | None
    results: list[Result]
