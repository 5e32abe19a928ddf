"""Check whether the files of a run are damaged or truncated, so that reports can name these files."""

import re
import struct
from pathlib import Path

from analyzers.files import is_whole_object, open_regular
from analyzers.kinds import Kind, is_named_recording

_JSON_KINDS = (Kind.MANIFEST, Kind.MESHES, Kind.COLLECTION, Kind.EXIT, Kind.GROUPS, Kind.ERROR)
"""The kinds of files that are a single JSON object.

If one is damaged, the report names it, and is made without it.
"""
HEARTBEAT = re.compile(r"heartbeat_\d{1,9}\.bin")
BEAT = struct.Struct("<qqqq32s")
"""The fields of a heartbeat file: time in ns, step, process id, number of heartbeats, and phase."""
STACKS = re.compile(r"stacks_\d{1,9}\.txt")
_STACK_BYTES = 1 << 22
FRAME = re.compile(rb'^\s*File ".*", line \d+,? in .+$|^\s+.+ \([^()]+\)$|^\s*<no Python frame>$')
"""Matches a stack frame as faulthandler or py-spy prints it, or the line that is printed if there is none."""


def damage_of(path: Path, kind: Kind | None) -> str:
    """Return a phrase on why the contents of a file do not fit its name or its `kind`; empty if they fit.

    A file of a name or kind that is not checked always fits.

    Raises:
        OSError: The file cannot be read.
    """
    if HEARTBEAT.fullmatch(path.name):
        return _damage_of_heartbeat(path)
    if kind is None and is_named_recording(path) and path.exists():
        return "not what its name says: it is empty, or damaged"
    if kind in _JSON_KINDS and not is_whole_object(path):
        return "no whole JSON object: it was cut short, or damaged"
    if STACKS.fullmatch(path.name):
        return _damage_of_stacks(path)
    return ""


def _damage_of_heartbeat(path: Path) -> str:
    with open_regular(path) as file:
        # One byte more than a heartbeat has, to see a file that is too long.
        content = file.read(BEAT.size + 1)
    if len(content) != BEAT.size:
        return f"no heartbeat: it has not the {BEAT.size} bytes of one"
    *numbers, phase = BEAT.unpack(content)
    text = phase.rstrip(b"\0")
    is_plain = text.isascii() and text.decode("latin-1").isprintable()
    return "" if min(numbers) >= 0 and is_plain else "no heartbeat: its numbers or its phase make no sense"


def _damage_of_stacks(path: Path) -> str:
    """Return a phrase on the damage of a file of stack dumps; empty if it is not damaged.

    Damage means that the file has no frame, or ends in the middle of one.
    """
    with open_regular(path) as file:
        content = file.read(_STACK_BYTES)
    lines = content.splitlines()
    if not any(map(FRAME.match, lines)):
        return "no stack: it has no frame that faulthandler or py-spy would write"
    # Of a longer file only the beginning was read: its end says nothing.
    is_cut = len(content) < _STACK_BYTES and not content.endswith(b"\n") and not FRAME.match(lines[-1])
    return "a stack that was cut short: it ends in the middle of a line" if is_cut else ""
