"""Read, in the lines before an event, its training step and its device."""

import re

import msgspec

from analyzers.logs.model import EventKind, Reason
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.patterns import NOISE
from analyzers.logs.reading.prefixes import split_prefix, step_in
from analyzers.logs.reading.text import Position, clean

_STEP_BYTES, _LINE_LENGTH = 1 << 13, 1000
"""The number of bytes before an event that are searched for a step, and the longest line that is searched."""
DEVICE = re.compile(rb"NVRM: The NVIDIA GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_DEVICE_BYTES = 300
_OF_DEVICE = (Reason.FALLEN_OFF_BUS, Reason.UNSUPPORTED_DEVICE)
_NAMES_A_STEP = re.compile(rb"[Ss]tep|[Ii]ter")


def step_of(found: Found, text: str, at: Position, rank: int | None, labelled: bool) -> int | None:
    """Return the training step of the event `found`; None if it is unknown.

    `text` is the event's line, `at` its position, and `rank` the rank that printed it. For a loss that is NaN, the step
    is in this line, if it has one. Otherwise it is the last step printed shortly before by the rank, or by a line
    without a rank. `labelled` says whether srun put a label before each line.
    """
    own = step_in(text) if found.kind is EventKind.NAN else None
    return own if own is not None else step_before(at, rank, labelled)


def with_device(found: Found, at: Position) -> Found:
    """Return `found` with the PCI address of the device that the driver named in the lines before position `at`.

    The driver begins its message with `NVRM: The NVIDIA GPU 0000:9d:00.0` and wraps it, so that only the next lines
    show the problem of this device. Events that are not about a device are returned unchanged.
    """
    if found.facts.reason not in _OF_DEVICE or found.facts.pci:
        return found
    end = at.chunk.find(b"\n", at.start)
    named = DEVICE.findall(at.chunk, max(0, at.start - _DEVICE_BYTES), end if end >= 0 else len(at.chunk))
    return found._replace(facts=msgspec.structs.replace(found.facts, pci=named[-1].decode())) if named else found


def step_before(at: Position, rank: int | None, labelled: bool) -> int | None:
    """Return the last step that `rank`, or a line without a rank, printed shortly before position `at`; None if none.

    `labelled` says whether srun put a label before each line.
    """
    text = at.chunk[max(0, at.start - _STEP_BYTES) : at.start]
    if not _NAMES_A_STEP.search(text):
        return None
    for raw in reversed(re.split(rb"[\r\n]", text)):
        if not _NAMES_A_STEP.search(raw):
            continue
        line = clean(raw[:_LINE_LENGTH])
        prefix, body = split_prefix(line, labelled)
        if prefix.rank in (None, rank) and not NOISE.search(line) and (step := step_in(body)) is not None:
            return step
    return None
