"""Describe the blocks of the user's source code at which ranks part: an `if`, a loop or a handler of errors."""

import re
from dataclasses import dataclass
from enum import StrEnum

_RANK = re.compile(
    r"\b(?:rank|local_rank|global_rank|get_rank|node_rank|is_main\w*|is_master\w*|is_rank\w*|main_process|"
    r"is_global_zero|master_process|is_(?:world|local)_process_zero)\b"
)
_CONSTANT = re.compile(r"\bin range\(\s*\d[\d_]*(?:\s*,\s*\d[\d_]*){0,2}\s*\)\s*:")
_NAMES = re.compile(r"\b(?:items|keys|values|names?|named_\w+|metrics?|sorted|set|dict|params?|parameters)\b")
_BATCHES = re.compile(r"\b\w*(?:batch|loader|data|dataset|sampler|samples|steps?|epochs?|iter|range|enumerate)\w*\b")


class BlockKind(StrEnum):
    """The kind of a block of source code: what decides which ranks enter it, and how often."""

    RANK = "rank"
    """An `if` whose condition names the rank."""
    BRANCH = "branch"
    HANDLER = "handler"
    NAMES = "names"
    """A loop over names, such as the keys of a dict."""
    BATCHES = "batches"
    """A loop over batches or steps."""
    COUNTED = "counted"
    """A loop that runs equally often on every rank, because its number of rounds is written in the source."""
    LOOP = "loop"


@dataclass(frozen=True)
class Block:
    """A block of the user's source: the file and line of its header, and the header, such as `if rank == 0:`."""

    filename: str
    line: int
    header: str

    @property
    def is_loop(self) -> bool:
        return self.header.startswith(("for ", "while ", "async for "))

    @property
    def kind(self) -> BlockKind:
        """What decides which ranks enter the block, and how often, judged by the words of its header."""
        if self.header.startswith(("except", "finally")):
            return BlockKind.HANDLER
        if not self.is_loop:
            return BlockKind.RANK if _RANK.search(self.header) else BlockKind.BRANCH
        if _CONSTANT.search(self.header):
            return BlockKind.COUNTED
        if _NAMES.search(self.header):
            return BlockKind.NAMES
        return BlockKind.BATCHES if _BATCHES.search(self.header) else BlockKind.LOOP


@dataclass(frozen=True)
class Parting:
    """The block at which ranks parted: `inside` are the ranks in it, `outside` those that are not."""

    block: Block
    inside: list[int]
    outside: list[int]
