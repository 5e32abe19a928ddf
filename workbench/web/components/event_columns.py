"""Write the events of a timeline as bytes, which the browser uses as typed arrays without parsing them."""

import json
import struct

import numpy as np

from analyzers.columns import Column
from analyzers.traces.kernel_names import kernel_name
from analyzers.traces.slices import Slices
from workbench.console import clean
from workbench.web.components.figure import LONGEST

_ALIGNED = 8
"""Each part of the bytes begins at a multiple of this number.

JavaScript's typed arrays require this: a float64 has 8 bytes.
"""


def event_bytes(slices: Slices) -> bytes:
    """Return the events of a timeline as bytes: length of a header (uint32), 4 zero bytes, header as JSON, columns.

    `slices` has one item per drawn block; a block is an event, or several short events. The header lists the columns in
    order, with their types. `assets/timeline_events.js` reads this format.
    """
    names = [clean(name)[:LONGEST] for name in slices.names]
    labels = [kernel_name(name) for name in names]
    columns = _column_list(slices)
    header = {
        "n": len(slices.start),
        "events": slices.events,
        "joined": slices.joined_ns,
        "columns": [(name, f"{column.dtype.kind}{column.dtype.itemsize}") for name, column in columns],
        "lines": [(clean(line.lane), line.on_device, line.depth, line.first, line.last) for line in slices.lines],
        "names": names,
        # Most names are their own label, which is then not sent.
        "labels": ["" if label == name else label for name, label in zip(names, labels, strict=True)],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    parts = [struct.pack("<II", len(text), 0), padded(text), *(padded(column.tobytes()) for _, column in columns)]
    return b"".join(parts)


def _column_list(slices: Slices) -> list[tuple[str, Column]]:
    """Return (name, values) of each column that the browser needs, in the smallest number type that fits the values.

    The column `count`, the number of events in a slice, is omitted if every slice is a single event.
    """
    # JavaScript has no whole numbers of 64 bits; a float64 holds those of 104 days in ns.
    short = slices.dur.max(initial=0) < 1 << 32
    columns = [
        ("start", slices.start.astype("<f8")),
        ("dur", slices.dur.astype("<u4" if short else "<f8")),
        ("row", slices.row.astype("<i4")),
        ("name", slices.name.astype("<u2" if len(slices.names) < 1 << 16 else "<u4")),
        ("kind", slices.kind.astype(np.uint8)),
        ("phase", slices.phase.astype(np.uint8)),
    ]
    return columns + ([("count", slices.count.astype("<u4"))] if slices.joined_ns else [])


def padded(part: bytes) -> bytes:
    """Return `part` with zeros at the end, so that its length is a multiple of `_ALIGNED`."""
    return part + bytes(-len(part) % _ALIGNED)
