"""Analyze memory snapshots: what filled the memory of a device, when, and which line of code allocated it.

`analyze` reads the allocator snapshots of PyTorch and of this project's recorder and returns a `Report`; `extend` adds
a breakdown table or a prediction for other settings; `compare` says how two runs differ; `analyzers.memory.views`
gives tables to draw. Nothing here needs torch or a GPU.

    from analyzers import memory
    from analyzers.store import Options

    report = memory.analyze("outputs", Options(rank=1))
    print(report.verdict.sentence)
    for finding in report.findings:
        print(finding.id, finding.title, finding.next)
    device = report.data.devices[0]
    print(device.peak_allocated_bytes, device.categories)
"""

from analyzers.memory.diff import Diff, GroupChange, Instant, between, fullest
from analyzers.memory.model import (
    AvoidableKind,
    AvoidableUse,
    Breakdown,
    CaughtRequest,
    Device,
    Fragmentation,
    Growth,
    MemoryClass,
    MemoryData,
    Oom,
    OomPattern,
    Saving,
    TopStack,
    UnusualUse,
    WhatIf,
)
from analyzers.memory.report import analyze, compare, extend, latest, matrix
from analyzers.memory.simulator import AddressContent, block_map, content_at
from analyzers.memory.snapshot import CATEGORIES

__all__ = [
    "CATEGORIES",
    "AddressContent",
    "AvoidableKind",
    "AvoidableUse",
    "Breakdown",
    "CaughtRequest",
    "Device",
    "Diff",
    "Fragmentation",
    "GroupChange",
    "Growth",
    "Instant",
    "MemoryClass",
    "MemoryData",
    "Oom",
    "OomPattern",
    "Saving",
    "TopStack",
    "UnusualUse",
    "WhatIf",
    "analyze",
    "between",
    "block_map",
    "compare",
    "content_at",
    "extend",
    "fullest",
    "latest",
    "matrix",
]
