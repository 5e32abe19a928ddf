"""Read the tracebacks of several processes in one log; frames are collected by line prefix until the exception's line.

For example, the lines of one process:

    [rank1]: Traceback (most recent call last):
    [rank1]:   File "train.py", line 17, in <module>
    [rank1]:     tokens["labels"]
    [rank1]: KeyError: 'labels'
"""

import re
from dataclasses import dataclass, field, replace

import msgspec

from analyzers.case.facts import EventKind, Facts, LogEvent, Reason
from analyzers.frames import Origin, origin_of
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.patterns import recognise
from analyzers.logs.reading.roster import Roster

FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9})(?:,? in (\S[^\n]{0,200}))?')
START = re.compile(r"Traceback \(most recent call last\)(?:: \(RANK (\d{1,6})\))?")
_CHAINED = re.compile(r"(?:During handling of the above|The above) exception(?: was the direct cause|, another)")
_MARKERS = re.compile(r"^[\s~^]*[~^][\s~^]*$")
EXCEPTION = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:: ?(.*))?$")
_NAMED_EXCEPTION = re.compile(
    r"(?:^|: |\s{2}|^\[\w{1,60}\.py:\d{1,6}\] |(?:it/s|s/it)\])"
    r"((?:[a-z_]\w*\.)*[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Failure|NotMet))(?:: (.*)|:?\s*)$"
)
"""Matches a line that names an exception, even without a traceback."""
_MESSAGE_BELOW = re.compile(r":$|^Exception has occurred: \w+$")
"""Matches a line that names an exception whose message begins in the next line, also in the words of a debugger."""
_STAMP = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]? (?:std(?:out|err) [FP] )?"
    r"|(?:ERROR|WARNING|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]{1,40}:\d{1,6}\] )?"
)
"""Matches what may stand before each line of a traceback of which the beginning is missing."""
_NAMES_CLASS = re.compile(r"(?:\w+\.)*[A-Z]\w*\s{2,}")
"""Matches what notebooks put before `Traceback`: the class of the exception."""
_CELL_FRAME = re.compile(
    r"^(?:File )?(?P<file>\S[^\n]{0,500}?\.py|<ipython-input-[\w-]{1,60}>)(?::(?P<line>\d{1,7}),)?"
    r" in (?P<name>[\w.<>: ]{1,120})"
    r"|^(?:Cell|Input) (?P<cell>In ?\[\d{1,6}\])(?:, line (?P<at>\d{1,7})|, in )"
)
"""Matches a frame in a notebook's traceback, of which the line may only be marked by an arrow below."""
_CELL = re.compile(r"(?:<ipython-input-|In ?\[)(\d{1,6})")
_CELL_LINE = re.compile(r"^-{2,}> ?(\d{1,7})(?: (.*))?$")
"""Matches the line that an arrow marks: `----> 5 loss.backward()`."""
_DIGITS = re.compile(r"\d+")
_LONGEST_LEAD = 200
_QUOTES_A_FRAME = re.compile(r"\s*(?:\w+\.)*[A-Z]\w*(?:Error|Exception): ")
"""Matches the line that names an exception, whose message may quote a frame."""
THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*most recent call first")
_BOX = re.compile(r"^\s*[\u2502\u2503|] (.*?)\s*(?:[\u2502\u2503|]\s*)?$")
"""Matches a line inside of the box that the library `rich` draws around a traceback."""
_BOXED_START = re.compile(r"^\s*[\u256d\u250c\u250f+][\u2500\u2501-]{2,} Traceback \(most recent call last\)")
_BOXED_END = re.compile(r"^\s*[\u2570\u2514\u2517+][\u2500\u2501-]{2,}")
_BOXED_FRAME = re.compile(r"^(\S.{0,1000}):(\d{1,9}) in (\S[^\n]{0,200})$")
_BOXED_CODE = re.compile(r"^(?:\u2771|>) {1,8}\d{1,9} [\u2502\u2503|] (.*)$")
_IN_SMALL_LETTERS = {"error", "gaierror", "herror", "timeout"}
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
    details: str = ""
    """The further lines of the exception's text."""
    goes_on: bool = False
    """Whether the message stands in the lines below: the line of the exception ends with a colon."""

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
    of_cell: tuple[str, str] | None = None
    """The file and function of a frame whose line is not read yet, in the traceback of a notebook."""
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

    def add_of_notebook(self, body: str) -> bool:
        """Add a frame of a notebook's traceback, or the line of it that an arrow marks; return whether it is one."""
        if match := _CELL_FRAME.match(body):
            self.of_cell = (_file(match["file"] or match["cell"]), (match["name"] or "<module>").strip())
            if line := match["line"] or match["at"]:
                self._end_frame(int(line))
            return True
        if match := _CELL_LINE.match(body):
            if self.of_cell:
                self._end_frame(int(match[1]))
            self.add_code(match[2] or "")
            return True
        return False

    def _end_frame(self, line: int) -> None:
        if self.of_cell and len(self.frames) < FRAMES_AT_MOST:
            self.frames.append((self.of_cell[0], line, self.of_cell[1]))
        self.of_cell = None

    def add_code(self, body: str) -> None:
        """Add a line of source text to the last frame, unless that frame already has one."""
        if self.frames:
            self.code.setdefault(self.frames[-1][:2], _code_of(body))


@dataclass
class Tracebacks:
    """Reads the tracebacks of all processes that print into one log.

    The keys of the dicts are the prefixes of the processes' lines, such as `[rank1]:`. `open` has the tracebacks that
    are being read, `last` the last exception of each process, and `chained` the exception that led to the one whose
    traceback comes next. `leads` matches what a logger, a container or an engine put before the first line of the last
    traceback, such as `ERROR 09-28 15:47:24 [core.py:718] `: its other lines have the same, with other numbers.
    """

    open: dict[str, OpenTraceback] = field(default_factory=dict)
    last: dict[str, Raised] = field(default_factory=dict)
    chained: dict[str, Raised] = field(default_factory=dict)
    leads: dict[str, re.Pattern[str]] = field(default_factory=dict)
    is_quoted: bool = False
    """Whether the log is quoted as mails and forums do it: `> ` before each line."""

    def unquoted(self, line: str) -> str:
        """Return a line without the mark of a quotation, if the log is quoted."""
        return line[1:].removeprefix(" ") if self.is_quoted and line.startswith(">") else line

    def bare(self, key: str, body: str) -> str:
        """Return a line of a process without what stands before each line of its last traceback."""
        body = self.unquoted(body)
        lead = self.leads.get(key)
        match = lead.match(body) if lead else None
        return body[match.end() :] if match else body

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

        `key` is the prefix of the lines of the process, `body` the line as `bare` returns it. The result is None for
        all other lines.
        """
        if match := START.search(body):
            before = body[: match.start()]
            self._learn(key, before)
            of_rank = int(match[1]) if match[1] else None
            self.open[key] = OpenTraceback(len(before) - len(before.lstrip()), of_rank=of_rank)
            return None
        body = _STAMP.sub("", body, count=1)
        if (match := FRAME.search(body)) and not _QUOTES_A_FRAME.match(body):
            if key not in self.open:
                self._learn(key, body[: match.start()])
            self.add_frame(key, match)
            return None
        if _CHAINED.search(body) and key in self.last:
            self.chained[key] = self.last[key]
            return None
        return self.exception(key, body)

    def _learn(self, key: str, before: str) -> None:
        """Remember what stands before the first line of a traceback, as the lead of its other lines."""
        if (lead := before.rstrip()) and len(before) < _LONGEST_LEAD and not _NAMES_CLASS.fullmatch(before):
            # A blank after it may be cut where the rest of the line is empty.
            self.leads[key] = re.compile(_DIGITS.sub(r"\\d+", re.escape(lead)) + " ?")

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
            trace.frames.append((_file(match[1]), int(match[2]), match[3] or ""))

    def exception(self, key: str, body: str) -> Raised | None:
        """Return the exception that a line names; None if the line is a source line or something else.

        `key` is the prefix of the process's lines, `body` the line without it.
        """
        trace = self.open.get(key)
        if trace is None:
            match = _NAMED_EXCEPTION.search(body)
            return self.finish(key, match, OpenTraceback()) if match else None
        if trace.add_of_notebook(body):
            return None
        if not body.strip() or _MARKERS.match(body) or len(body) - len(body.lstrip()) > trace.indent:
            trace.add_code(body)
            return None
        match = EXCEPTION.match(body)
        if match and _is_exception_name(match[1]) and (trace.frames or match[1].endswith(("Error", "Exception"))):
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
        message, line = (match[2] or "").strip(), match.string.rstrip()
        goes_on = line.endswith("raised:") or (not message and bool(_MESSAGE_BELOW.search(line)))
        raised = Raised(match[1], message, trace.frames, chain, trace.code, trace.of_rank, goes_on=goes_on)
        self.last[key] = raised
        return raised


def _file(name: str) -> str:
    """Return the file of a frame; of a notebook's cell, which is the user's code, its number as `cell 7`."""
    cell = _CELL.match(name)
    return f"cell {cell[1]}" if cell else name


def _code_of(body: str) -> str:
    """Return a source line of a traceback in the form in which it is stored: without indentation, shortened."""
    return body.strip()[:_CODE_LENGTH]


def _is_exception_name(name: str) -> bool:
    """Return whether a name can be the name of an exception class, such as `KeyError` or `my.module.Stop`.

    Some modules have classes in small letters: `socket.gaierror`, `struct.error`, `cv2.error`.
    """
    module, _, last = name.rpartition(".")
    return last[:1].isupper() or (bool(module) and last in _IN_SMALL_LETTERS)


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


# Find the collective, send or recv that raised an exception, from the frames and source lines of its traceback.

MESSAGES = {"send", "recv", "isend", "irecv"}
_TO_ONE_RANK = {"reduce", "gather", "gather_object"}
"""The collectives in which all ranks but the root only send; the source line of the call names the root."""
_INIT = "init_process_group"
NEW_GROUP = "new_group"
_KEY_OF_RANK = re.compile(r"keys: /default_pg/0//(?:\w{1,40}//)?\w{1,20}//\d{1,9}/(\d{1,9})$")
"""Matches the key in the store under which gloo waits for the address of a rank while a process group is created.

The number at its end is the rank within the new group.
"""
MEMBERS = re.compile(r"\bnew_group\( ?(?:ranks ?= ?)?[\[(]([\d, ]{1,200})[\])]")
"""Matches a source line that lists the members of a new process group: `dist.new_group([0, 3])`."""
_PEER = re.compile(
    r"\b(?:src|dst) ?= ?(?:(?P<number>\d{1,5})|[\w.]*rank(?:\(\))? ?(?P<sign>[+-]) ?(?P<offset>\d{1,5}))(?= ?[,)])"
    r"|\bi?(?:send|recv)\([^()]{1,80}, ?(?P<positional>\d{1,5})\)"
)
"""Matches the peer of a send or recv in a source line: `src=0`, `dst=rank + 1`, or the second argument."""
_COLLECTIVES_FILE = "torch/distributed/distributed_c10d.py"


def with_operation(found: Found, raised: Raised) -> Found:
    """Return `found`, the event of an exception, with the collective that raised it (`all_reduce`) and the peer rank.

    Both are found in the frames of `raised`. Events other than timeouts, lost connections and mismatches are returned
    unchanged. If the exception was raised in `init_process_group`, or while a process group was created, the missing
    rank is added, too.
    """
    names = (name for file, _, name in raised.frames if file.endswith(_COLLECTIVES_FILE) and name)
    operation = next(names, None) if found.facts.operation is None else None
    if operation is None or found.kind not in (EventKind.TIMEOUT, EventKind.CONNECTION_LOST, EventKind.MISMATCH):
        return found
    frame = user_frame(raised.frames)
    code = raised.code.get(frame[:2], "") if frame else ""
    peer = _peer_in(code) if operation in MESSAGES | _TO_ONE_RANK else None
    facts = msgspec.structs.replace(found.facts, operation=operation, peer=peer)
    key = _KEY_OF_RANK.search(raised.message)
    if operation == _INIT and key:
        facts = msgspec.structs.replace(facts, reason=Reason.MISSING_RANKS, ranks=[int(key[1])])
    if operation == NEW_GROUP and key:
        facts = msgspec.structs.replace(facts, reason=Reason.GROUPS, ranks=_member_in(code, int(key[1])))
    return found._replace(facts=facts)


def _member_in(code: str, number: int) -> list[int]:
    """Return, in a list, the member with index `number` of the process group that the source line `code` creates.

    For `new_group([4, 6])` and index 1 the member is 6. The list is empty if the line does not list the members as
    numbers.
    """
    match = MEMBERS.search(code)
    members = sorted(int(digits) for digits in re.findall(r"\d{1,9}", match[1])) if match else []
    return members[number : number + 1]


def _peer_in(code: str) -> str | None:
    """Return the peer rank in a source line: `0` for `src=0`, `+1` for `dst=rank + 1`; None if it has neither."""
    match = _PEER.search(code)
    if not match:
        return None
    return match["number"] or match["positional"] or f"{match['sign']}{match['offset']}"


# Find out from a log whether a program handled an error, and whether it continued its work afterwards.

_LOGGED = re.compile(
    r"\b(?:ERROR|CRITICAL)\b|\bWARN(?:ING)?\b.*(?i:error|exception|fail|caught|skip|retry|traceback|could not|unable)"
)
"""Matches the level that a logger prints before a message on an error.

A logger that prints an exception shows that the program caught it; a warning of something else does not.
"""
_HANDLED = re.compile(
    r"\b(?:skip(?:ping|ped|s)?|retry(?:ing)?|attempt \d+|fall(?:ing|s)? back|ignor(?:ed|ing)|continuing)\b",
    re.IGNORECASE,
)
"""Matches the words by which a program reports that it handles an error."""
_THREAD_DIED = re.compile(r"^Exception in thread (\S[^\n]{0,80}):$")
_RAISED_KINDS = (
    EventKind.EXCEPTION,
    EventKind.OUT_OF_MEMORY,
    EventKind.HOST_OUT_OF_MEMORY,
    EventKind.DATALOADER_WORKER,
    EventKind.DISK_FULL,
    EventKind.NETWORK,
)
"""The kinds of events that report an error which a program can catch."""


def with_circumstances(facts: Facts, raised: Raised, before: str, *, has_rank: bool) -> Facts:
    """Return the facts of an exception with `logged`, `uncaught` and `thread` set from the way it was printed.

    `logged`: a logger printed the exception. `uncaught`: PyTorch's hook for uncaught exceptions printed it. `thread`:
    the thread that it ended. `before` is the line before its traceback; `has_rank` says whether its lines begin with
    PyTorch's `[rankN]:`. An exception that Python itself ignores, such as an error of a destructor, counts as logged.
    """
    thread = _THREAD_DIED.match(before)
    # The program of a `python -c`: a child process printed it, which may fail without any harm.
    of_child = not has_rank and bool(raised.frames) and raised.frames[0][::2] == ("<string>", "<module>")
    of_child = of_child and not any(name == "spawn_main" for _, _, name in raised.frames)
    is_logged = of_child or "Exception ignored in" in before or (not has_rank and bool(_LOGGED.search(before)))
    # Python prints and ignores what a destructor raises: the process goes on.
    facts = msgspec.structs.replace(facts, survived=True) if "Exception ignored in" in before else facts
    return msgspec.structs.replace(
        facts, logged=is_logged, uncaught=has_rank and bool(raised.frames), thread=thread[1] if thread else None
    )


def _is_of_worker(raised: Raised) -> bool:
    """Return whether an exception was raised while data was received from a data-loader worker, judged by its frames.

    A lost connection there is a connection to the worker, not to another rank.
    """
    files = [file for file, _, _ in raised.frames]
    return any("/torch/utils/data/" in f for f in files) and any("/multiprocessing/" in f for f in files)


def is_handled(kind: EventKind, text: str) -> bool:
    """Return whether a line of a logger reports an error and how the program continues, such as `retrying`.

    `kind` is the kind of the event in the line.
    """
    return kind in _RAISED_KINDS and bool(_LOGGED.search(text)) and bool(_HANDLED.search(text))


def marked_as_survived(event: LogEvent, roster: Roster) -> LogEvent:
    """Return `event`, with `facts.survived` set if the log shows that training continued after it.

    After an exception a later step shows this; after a loss that is NaN a later finite loss shows this. An error
    printed by PyTorch's hook for uncaught exceptions has ended its process, so it never gets this mark. `roster` has
    the last step and the last line of each rank in the log.
    """
    if event.kind is EventKind.NAN:
        survived = not event.facts.ranks and roster.is_finite_after(event.line, event.rank)
    else:
        survived = (
            event.kind in _RAISED_KINDS and not event.facts.uncaught and roster.goes_on_after(event.line, event.rank)
        )
    return _with_facts(event, survived=True) if survived else event


def _with_facts(event: LogEvent, **changed: object) -> LogEvent:
    return msgspec.structs.replace(event, facts=msgspec.structs.replace(event.facts, **changed))


def with_stack(event: LogEvent, stack: list[tuple[str, str, str]]) -> LogEvent:
    """Return the event with the innermost user line of a stack as its source, and the collective that the stack is in.

    `stack` has (file, line, function) of each frame, the innermost first. Without a user line the event is unchanged.
    """
    operation = next((name for file, _, name in stack if file.endswith(_COLLECTIVES_FILE) and name), None)
    file, line, name = next((f for f in stack if origin_of(f[0]) is Origin.USER), ("", "", ""))
    if not file:
        return event
    placed = msgspec.structs.replace(event, source=f"{file}:{line}", function=name)
    return _with_facts(placed, operation=operation)


# Find the event that an exception reports, and the exception in a chain that shows why a process failed.
#
# The chain of an exception has the exceptions that led to it: its causes, and exceptions during whose handling it was
# raised.

COMMUNICATION = {"DistBackendError": EventKind.NCCL_ERROR, "DistNetworkError": EventKind.CONNECTION_LOST,
                 "DistStoreError": EventKind.TIMEOUT, "DistError": EventKind.NCCL_ERROR,
                 "RendezvousClosedError": EventKind.CONNECTION_LOST}  # fmt: skip
BROKEN = ("ConnectionResetError", "ConnectionAbortedError", "BrokenPipeError")
"""Python's exceptions for any lost connection, whether to another rank, to a server or to a child process."""
_LOST_WORKER = Found(EventKind.DATALOADER_WORKER, Facts(reason=Reason.WORKER_EXIT))
WAITS = (EventKind.TIMEOUT, EventKind.CONNECTION_LOST)


def is_wait(kind: EventKind, facts: Facts) -> bool:
    """Return whether an event shows that a rank's wait in a collective failed by a timeout or a lost connection.

    `kind` and `facts` are the kind and the facts of the event.
    """
    return kind in WAITS and facts.operation is not None


def meaning_of(raised: Raised) -> Found:
    """Return the event that an exception reports, taken from the first exception in its chain that a pattern matches.

    The chain of `raised` has the exceptions that led to it; lost connections in the chain do not count. If no pattern
    recognises any of them, the class of the exception decides (see `_by_name`). If the exception itself is a timeout or
    lost connection in a collective, its chain is ignored, because the earlier exceptions were handled and have events
    of their own.
    """
    last = with_operation(_found_of(raised) or _by_name(raised), raised)
    if is_wait(last.kind, last.facts):
        return last
    meanings = (_found_of(link) for link in raised.chain)
    first = next((found for found in meanings if found and found.kind is not EventKind.CONNECTION_LOST), None)
    return with_operation(first, raised) if first else last


def _found_of(raised: Raised) -> Found | None:
    """Return the event of an exception, judged by its own text and not by the exceptions that led to it.

    The result is None if no pattern recognises the text.
    """
    found = recognise(raised.text)
    if found and found.kind is EventKind.OUT_OF_MEMORY and raised.details:
        # The sizes may stand in the further lines.
        found = recognise(f"{raised.text}\n{raised.details}") or found
    is_worker = found is not None and found.kind is EventKind.CONNECTION_LOST and _is_of_worker(raised)
    return _LOST_WORKER if is_worker else found


def _by_name(raised: Raised) -> Found:
    """Return the event of an exception whose text no pattern recognises, judged by the name of its class.

    A class without a meaning of its own gives an event of the kind `EXCEPTION`.
    """
    name = raised.name.rpartition(".")[2]
    if name == "MemoryError":
        return Found(EventKind.HOST_OUT_OF_MEMORY, Facts(reason=Reason.HOST_ALLOCATOR, error_name=name))
    if name in BROKEN and _is_of_worker(raised):
        return _LOST_WORKER
    kind = EventKind.CONNECTION_LOST if name in BROKEN and _is_of_ranks(raised) else EventKind.EXCEPTION
    return Found(COMMUNICATION.get(name, kind), Facts(error_name=name))


def _is_of_ranks(raised: Raised) -> bool:
    """Return whether an exception was raised in `torch.distributed`, so that a lost connection is between ranks."""
    return any("/torch/distributed/" in file for file, _, _ in raised.frames)
