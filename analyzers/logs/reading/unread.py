"""Collect the lines of a log that look like errors although no pattern reads them.

What is not understood is quoted: a log with such lines does not "show no failure".
"""

import re
from dataclasses import dataclass, field

_KEPT_AT_MOST, _LONGEST, _SHAPES_AT_MOST = 20, 300, 10_000
_SURELY = re.compile(
    r"\b(?:FATAL|CRITICAL|SEVERE|PANIC|OOMKilled|Evicted|undefined symbol|core dumped|access fault|out of memory)\b"
)
_LOOKS_LIKE_AN_ERROR = re.compile(
    r"(?:^|\W)[A-Za-z]{0,60}(?:Error|Exception|Fault)(?:\W|$)|\b(?:ERROR|Fatal|fatal|panic)\b|\berror:|\[E "
    r"|\b(?:[Ff]ailed|FAILED) (?:to|with|for|in|at)\b|\b(?:has|have|is|was) failed\b|\bfailed(?::|!|\.?$)"
    r"|\b[Aa]borted\b|\bAborting\b|\b[Kk]ill(?:ed|ing)\b|\b[Ss]egmentation\b|\b[Ss]egfault\b"
    r"|\b[Cc]an(?:not|'t) (?:open|load|find|allocate|connect|import|access|resolve)\b|\b[Uu]nable to\b"
    r"|\b[Uu]nreachable\b|\b[Cc]ould(?: not|n't)\b|\b[Uu]nknown error\b"
    r"|\bexit(?:ed)?(?: with)?(?: code| status)? -?[1-9]"
    r"|\b[Pp]ermission denied\b|\b[Rr]efused\b|\bNo such (?:file|device)\b|\b[Tt]imed out\b|\bcorrupted\b"
)
_HARMLESS = re.compile(
    r"\b(?:0|no|No|without) (?:errors?|failures?|failed)\b|\bWARN(?:ING)?\b|[Ww]arning\b|\b(?:INFO|DEBUG)\b|\[[WI] "
    r"|(?:errors?|fail(?:ed|ures?))['\"]?\s*[=:]\s*(?:0\b|None|False|\[\]|''|\"\")|\bif .{0,60}\b(?:fail|error)"
    r"|[Ee]rror[_ ](?:rate|bars?|handling|feedback)"
)
"""Matches lines that only mention errors, or whose logger says itself that they report none."""


_NO_MESSAGE = re.compile(
    r"\s*[$!%#>]?\s*(?:[A-Z_]+=\S* )*(?:sudo )?"
    r"(?:python[\d.]*|torchrun|accelerate|deepspeed|srun|sbatch|mpirun|bash|sh|docker|pip) "
    r"|\s*(?:\[\w+\]:)?\s*(?:raise|except) [A-Za-z(]|#{1,6} \S"
)
"""Matches a command as somebody typed it, a line of code in a traceback whose frame is cut off, and a heading."""


@dataclass
class UnreadLines:
    """The lines that look like errors and are not understood: the first ones as (line number, text), and their number.

    Lines that differ only in their digits count as one.
    """

    kept: list[tuple[int, str]] = field(default_factory=list)
    count: int = 0
    _shapes: set[bytes] = field(default_factory=set)

    def note(self, text: str, shape: bytes, number: int) -> None:
        """Keep a line that no pattern reads if it looks like an error; `shape` is the line without its digits."""
        if _NO_MESSAGE.match(text):
            return
        looks_so = _SURELY.search(text) or (_LOOKS_LIKE_AN_ERROR.search(text) and not _HARMLESS.search(text))
        if looks_so and shape not in self._shapes:
            if len(self._shapes) < _SHAPES_AT_MOST:
                self._shapes.add(shape)
            self.add(number, text)

    def drop(self, number: int) -> None:
        """Forget a line: it announces what is read below it."""
        if self.kept and self.kept[-1][0] == number:
            self.kept.pop()
            self.count -= 1

    def add(self, number: int, text: str) -> None:
        """Count a line, and keep it unless too many are kept already."""
        self.count += 1
        if len(self.kept) < _KEPT_AT_MOST:
            self.kept.append((number, text.strip()[:_LONGEST]))


WORDS = (
    b"Error", b"Exception", b"Fault", b"ERROR", b"FATAL", b"CRITICAL", b"SEVERE", b"atal", b"panic", b"PANIC",
    b"OOMKilled", b"Evicted", b"error", b"[E ", b" E ", b"ailed", b"FAILED", b"borted", b"Aborting", b"Killed",
    b"killed", b"illing", b"core dumped", b"egmentation", b"egfault", b"undefined symbol", b"access fault",
    b"annot ", b"an't ", b"nable to", b"denied", b"efused", b"No such ", b"out of memory", b"imed out",
    b"corrupted", b"nreachable", b"ould not", b"ouldn't", b"nknown error", b"exit code", b"exited with", b"exit status",
)  # fmt: skip
"""A word that each line has which looks like an error."""
