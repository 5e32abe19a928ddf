"""Read the tracebacks of several processes in one log; frames are collected by line prefix until the exception's line.

For example, the lines of one process:

    [rank1]: Traceback (most recent call last):
    [rank1]:   File "train.py", line 17, in <module>
    [rank1]:     tokens["labels"]
    [rank1]: KeyError: 'labels'
"""

import re
from dataclasses import dataclass, field, replace

from analyzers.frames import Origin, origin_of

FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9})(?:,? in (\S[^\n]{0,200}))?')
START = re.compile(r"Traceback \(most recent call last\)(?:: \(RANK (\d{1,6})\))?")
_CHAINED = re.compile(r"(?:During handling of the above|The above) exception(?: was the direct cause|, another)")
_MARKERS = re.compile(r"^[\s~^]*[~^][\s~^]*$")
EXCEPTION = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(.*))?$")
_NAMED_EXCEPTION = re.compile(
    r"(?:^|: |\s{2})((?:[a-z_]\w*\.)*[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Failure|NotMet))(?:: (.*)|\s*)$"
)
"""Matches a line that names an exception, even without a traceback."""
THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*most recent call first")
_BOX = re.compile(r"^\s*[\u2502\u2503|] (.*?)\s*(?:[\u2502\u2503|]\s*)?$")
"""Matches a line inside of the box that the library `rich` draws around a traceback."""
_BOXED_START = re.compile(r"^\s*[\u256d\u250c\u250f+][\u2500\u2501-]{2,} Traceback \(most recent call last\)")
_BOXED_END = re.compile(r"^\s*[\u2570\u2514\u2517+][\u2500\u2501-]{2,}")
_BOXED_FRAME = re.compile(r"^(\S.{0,1000}):(\d{1,9}) in (\S[^\n]{0,200})$")
_BOXED_CODE = re.compile(r"^(?:\u2771|>) {1,8}\d{1,9} [\u2502\u2503|] (.*)$")
_MISSES = 40
FRAMES_AT_MOST = 200
_CODE_LENGTH = 200


@dataclass(frozen=True)
class Raised:
    """An exception in a log: its class (`name`), its text, and its frames as (file, line, function), outermost first.

    `chain` has the exceptions that led to it, the earliest one first.
    """

    name: str
    message: str
    frames: list[tuple[str, int, str]]
    chain: list["Raised"]
    code: dict[tuple[str, int], str] = field(default_factory=dict)
    """{(file, line): source text of the frame}, for the frames whose source text the log shows."""
    of_rank: int | None = None
    """The rank that raised the exception, if another exception only passes it on to all ranks; else None.

    The frames are then those of the other exception.
    """
    hint: str | None = None
    """The advice at the end of the exception's text, if it is known before the lines after it are read."""

    @property
    def text(self) -> str:
        """The exception as Python prints it: `KeyError: 'x'`."""
        return f"{self.name}: {self.message}" if self.message else self.name


@dataclass
class OpenTraceback:
    """A traceback that is still being read: the line that names the exception has not come yet.

    `indent` is the number of blanks before its lines. `misses` counts lines in between that do not belong to it.
    """

    indent: int = 0
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    code: dict[tuple[str, int], str] = field(default_factory=dict)
    misses: int = 0
    is_boxed: bool = False
    of_rank: int | None = None
    part_of_path: str = ""
    """The beginning of a path that continues in the next line, if the traceback is drawn in a box."""

    def add_boxed(self, text: str) -> None:
        """Add a line of a traceback that `rich` drew in a box, without its border: a frame, or its source line."""
        if match := _BOXED_FRAME.match(text):
            path = match[1] if match[1].startswith("/") else self.part_of_path + match[1]
            if len(self.frames) < FRAMES_AT_MOST:
                self.frames.append((path, int(match[2]), match[3]))
        elif match := _BOXED_CODE.match(text):
            self.add_code(match[1].replace("\u2502", " "))
        self.part_of_path = text if text.startswith("/") and " " not in text else ""

    def add_code(self, body: str) -> None:
        """Add a line of source text to the last frame, unless that frame already has one."""
        if self.frames:
            self.code.setdefault(self.frames[-1][:2], _code_of(body))


@dataclass
class Tracebacks:
    """Reads the tracebacks of all processes that print into one log.

    The keys of the dicts are the prefixes of the processes' lines, such as `[rank1]:`. `open` has the tracebacks that
    are being read, `last` the last exception of each process, and `chained` the exception that led to the one whose
    traceback comes next.
    """

    open: dict[str, OpenTraceback] = field(default_factory=dict)
    last: dict[str, Raised] = field(default_factory=dict)
    chained: dict[str, Raised] = field(default_factory=dict)

    def feed_box(self, key: str, body: str) -> bool:
        """Read the next line of a process if it belongs to a traceback drawn in a box; return whether it does.

        The line that names the exception follows below the box. `key` is the prefix of the lines of the process, `body`
        the line without this prefix.
        """
        if _BOXED_START.match(body):
            self.open[key] = OpenTraceback(is_boxed=True)
            return True
        trace = self.open.get(key)
        if trace is None or not trace.is_boxed:
            return False
        if match := _BOX.match(body):
            trace.add_boxed(match[1])
            return True
        return bool(_BOXED_END.match(body))

    def feed(self, key: str, body: str) -> Raised | None:
        """Read the next line of a process; return the exception if the line names one, such as `KeyError: 'x'`.

        `key` is the prefix of the lines of the process, `body` the line without this prefix. The result is None for all
        other lines.
        """
        if match := START.search(body):
            before = body[: match.start()]
            of_rank = int(match[1]) if match[1] else None
            self.open[key] = OpenTraceback(len(before) - len(before.lstrip()), of_rank=of_rank)
            return None
        if match := FRAME.search(body):
            self.add_frame(key, match)
            return None
        if _CHAINED.search(body) and key in self.last:
            self.chained[key] = self.last[key]
            return None
        return self.exception(key, body)

    def is_code(self, key: str, body: str) -> bool:
        """Return whether `body` is the source line of the last frame of the process whose lines have the prefix `key`.

        Such a line may contain the words of a failure: `raise OutOfMemoryError("CUDA out of memory")`.
        """
        trace = self.open.get(key)
        return trace is not None and bool(trace.frames) and trace.code.get(trace.frames[-1][:2]) == _code_of(body)

    def add_frame(self, key: str, match: "re.Match[str]") -> None:
        """Add a frame (`match`) to the open traceback of the process whose lines have the prefix `key`.

        If there is no open traceback, because the log begins in the middle of one, open one.
        """
        trace = self.open.setdefault(key, OpenTraceback())
        if len(trace.frames) < FRAMES_AT_MOST:
            trace.frames.append((match[1], int(match[2]), match[3] or ""))

    def exception(self, key: str, body: str) -> Raised | None:
        """Return the exception that a line names; None if the line is a source line or something else.

        `key` is the prefix of the process's lines, `body` the line without it.
        """
        trace = self.open.get(key)
        if trace is None:
            match = _NAMED_EXCEPTION.search(body)
            return self.finish(key, match, OpenTraceback()) if match else None
        if not body.strip() or _MARKERS.match(body) or len(body) - len(body.lstrip()) > trace.indent:
            trace.add_code(body)
            return None
        match = EXCEPTION.match(body)
        if match and trace.frames and _is_exception_name(match[1]):
            del self.open[key]
            return self.finish(key, match, trace)
        trace.misses += 1
        if trace.misses > _MISSES:
            del self.open[key]
        return None

    def finish(self, key: str, match: "re.Match[str]", trace: OpenTraceback) -> Raised:
        """Return the exception that a matched line names, with its frames and the exceptions that led to it.

        `match` is the line, `trace` the traceback before it, and `key` the prefix of the process's lines.
        """
        relayed_by = self.last.get(key) if trace.of_rank is not None else None
        if relayed_by:
            # Its own frames are those of the library that calls back; the user's line is in the exception before.
            trace = replace(trace, frames=relayed_by.frames, code=relayed_by.code)
        before = self.chained.pop(key, None)
        chain = [*before.chain, before][-8:] if before else []
        raised = Raised(match[1], (match[2] or "").strip(), trace.frames, chain, trace.code, trace.of_rank)
        self.last[key] = raised
        return raised


def _code_of(body: str) -> str:
    """Return a source line of a traceback in the form in which it is stored: without indentation, shortened."""
    return body.strip()[:_CODE_LENGTH]


def _is_exception_name(name: str) -> bool:
    """Return whether a name can be the name of an exception class, such as `KeyError` or `my.module.Stop`."""
    return name.rpartition(".")[2][:1].isupper()


def user_frame(frames: list[tuple[str, int, str]], *, innermost_first: bool = False) -> tuple[str, int, str] | None:
    """Return the innermost frame of the user's own code; else the innermost of an installed package; else None.

    Frames are (file, line, function); `innermost_first` says in which order they are given.
    """
    ordered = frames if innermost_first else frames[::-1]
    for origin in (Origin.USER, Origin.PACKAGE):
        # `bin/torchrun` is a script of a package.
        of_origin = (f for f in ordered if origin_of(f[0]) is origin and "/bin/" not in f[0])
        if frame := next(of_origin, None):
            return frame
    return None
