"""Which ranks a log shows, and their last step and line: a rank that fell silent is often the one to blame."""

import re
from dataclasses import dataclass, field

from analyzers.logs.reading.prefixes import printed_rank, split_prefix, step_in
from analyzers.logs.reading.text import clean

HEAD_BYTES, TAIL_BYTES = 1 << 15, 1 << 16
"""How much of each chunk is looked at: enough for the ranks and the end, and a fraction of the time."""
LONGEST_TEXT = 1000
RANKS_AT_MOST = 1 << 16
WORLD_SIZE = re.compile(r"(?:world[_ ]size|nranks|WORLD_SIZE)['\"]?\s*[=: ]\s*(\d{1,6})\b")
UNRANKED = -1
LAYOUT = re.compile(r"^\s{2,}\S|^[=*\s-]*$|^\[[IWEF]\d")
"""Lines of tracebacks, rules of tables and lines of C++ loggers: not what the job itself printed last."""


@dataclass
class Seen:
    """The last step and line of a rank."""

    step: int | None = None
    line: str = ""


@dataclass
class Roster:
    """The ranks of one log; lines without a rank count for UNRANKED."""

    ranks: dict[int, Seen] = field(default_factory=dict)
    world_size: int | None = None

    def look(self, chunk: bytes, triggers: "re.Pattern[bytes]", labelled: bool) -> None:
        """Look at the head and the tail of a chunk."""
        parts = [chunk]
        if len(chunk) > HEAD_BYTES + TAIL_BYTES:
            parts = [chunk[:HEAD_BYTES], chunk[-TAIL_BYTES:]]
        for part in parts:
            for raw in re.split(rb"[\r\n]", part):
                if raw.strip():
                    self.note(raw[:LONGEST_TEXT], labelled, is_error=bool(triggers.search(raw)))

    def note(self, raw: bytes, labelled: bool, *, is_error: bool) -> None:
        """Take one line. The rank that an error names in its text is not the one that printed it."""
        text = clean(raw)
        prefix, body = split_prefix(text, labelled)
        rank = prefix.rank
        if rank is None and not is_error:
            rank = printed_rank(text)
        if not is_error and (size := WORLD_SIZE.search(text)):
            self.world_size = max(self.world_size or 0, int(size[1]))
        key = UNRANKED if rank is None else rank
        if key not in self.ranks and len(self.ranks) > RANKS_AT_MOST:
            return
        seen = self.ranks.setdefault(key, Seen())
        if not is_error and not LAYOUT.match(body):
            seen.line = body[:LONGEST_TEXT]
            seen.step = step if (step := step_in(body)) is not None else seen.step
