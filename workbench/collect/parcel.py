"""Define the messages between the sender of a node and the receiver: parcels with parts of files, and replies.

Both are msgpack with a fixed structure, so that nothing else than these fields can come out of a message.
"""

import msgspec

PATH = "/v1/parcels"
SIGNATURE = "X-Workbench-Signature"
PARCEL_BYTES = 8 << 20
"""The longest message that a receiver reads."""
PART_BYTES = 1 << 20
"""The most bytes of one file in a part."""
FULL_BYTES, FULL_PARTS = 4 << 20, 256
"""A sender closes a parcel when it has so many bytes or parts."""
TAIL_BYTES = 4096
"""How many bytes before a continued part are compared, to notice that the file is another one by now."""


class Part(msgspec.Struct, array_like=True):
    """A part of a file: `data` belongs at `offset` of the file `path`, which has `size` bytes in all.

    `version` names the content that the part comes from. It is empty for a file that only grows; then the part is
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
    """A set of dumps that a node's collector began by itself: why, and when (Unix nanoseconds)."""

    reason: str
    detail: str
    asked_ns: int


class Parcel(msgspec.Struct, array_like=True):
    """A message of a sender; `number` counts its messages, so that nobody can send an old one again.

    `session` is a random name of the node's run folder, by which a sender that was started again is known. `ended`
    says that the job of the node has ended, and that all of its files have been sent; `at_home`, that the node sends no
    files because its run folder is the home folder. `incident` is the last set of
    dumps that the node began to take.
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
    """What became of a part: the receiver now has the first `have` bytes of the file.

    `differs` says that its bytes are not those of the sender, so that the file must be sent as a whole. `refused` is
    the reason for which the file is not accepted, else empty.
    """

    have: int = 0
    differs: bool = False
    refused: str = ""


class Reply(msgspec.Struct, array_like=True):
    """The answer to a parcel: a `Result` for each part, and when to send the next parcel, in seconds from now.

    `home` is the id of the receiver's folder, by which a sender notices that both share a disk. `ask` is an incident
    on another node, because of which this node shall take dumps as well. `number` is that of the parcel.
    """

    number: int
    home: str
    next_s: float
    ask: Incident | None
    results: list[Result]
