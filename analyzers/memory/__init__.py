"""What filled the memory, when, from which line: allocator snapshots of PyTorch and of our trainer."""

from analyzers.memory.answers.across_ranks import matrix
from analyzers.memory.model import Device, Fragmentation, Growth, MemoryData, Oom, TopStack
from analyzers.memory.on_request import with_further
from analyzers.memory.reading.reader import CATEGORIES
from analyzers.memory.report import analyze

__all__ = [
    "CATEGORIES",
    "Device",
    "Fragmentation",
    "Growth",
    "MemoryData",
    "Oom",
    "TopStack",
    "analyze",
    "matrix",
    "with_further",
]
