"""The whole run in one story: joins memory, hangs, steps and traces, and puts the first cause first."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from analyzers import hangs, memory, run, steps, store, traces
from analyzers.errors import WorkbenchError
from analyzers.frames import is_library
from analyzers.hangs import Culprit, ExitFile, HangData
from analyzers.memory import MemoryData
from analyzers.report import (
    Evidence,
    Finding,
    Input,
    Report,
    Severity,
    Status,
    Verdict,
    ranked,
    status_of,
    tool_version,
)
from analyzers.run import Kind, Run
from analyzers.steps import StepsData
from analyzers.traces import TraceData
from analyzers.words import agree, rank_names, source_line

SCHEMA = "workbench.incident/1"
CRASHED = "incident.crashed"
SNAPSHOTS_AT_MOST = 32
"""More snapshots than this are not all read: the last step's suffice to say what happened."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the chain from cause to effect; `findings` are the ids of those behind it."""

    text: str
    kind: str = msgspec.field(name="class")
    ranks: list[int] = []
    step: int | None = None
    findings: list[str] = []


class IncidentData(msgspec.Struct, frozen=True, kw_only=True):
    memory: MemoryData | None
    hang: HangData | None
    trace: TraceData | None
    steps: StepsData | None
    chain: list[Link]


@dataclass
class Rooms:
    """What each room says; None where it has nothing to read or could not."""

    memory: Report[MemoryData] | None = None
    hang: Report[HangData] | None = None
    trace: Report[TraceData] | None = None
    steps: Report[StepsData] | None = None
    empty_step_logs: bool = False
    problems: list[str] = field(default_factory=list)

    def reports(self) -> list[Report[Any]]:
        return [r for r in (self.memory, self.hang, self.trace, self.steps) if r is not None]


def analyze(found: Run, options: store.Options | None = None) -> Report[IncidentData]:
    """Why a run ended or is slow: the verdict is that of the root cause."""
    options = options or store.Options()
    rooms = ask(found, options)
    crash = first_error(found)
    chain = chain_of(rooms, crash, found.manifest())
    findings = [f for report in rooms.reports() for f in report.findings]
    findings += [crash_finding(crash)] if crash and chain and chain[0].findings == [CRASHED] else []
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=inputs(found, rooms),
        verdict=verdict(rooms, chain, found.manifest(), findings),
        findings=in_order_of(chain, findings),
        data=IncidentData(
            memory=rooms.memory.data if rooms.memory else None,
            hang=rooms.hang.data if rooms.hang else None,
            trace=rooms.trace.data if rooms.trace else None,
            steps=rooms.steps.data if rooms.steps else None,
            chain=chain,
        ),
    )


def in_order_of(chain: Sequence[Link], findings: Sequence[Finding]) -> list[Finding]:
    """What the chain rests on first, in its order, then the rest by weight."""
    told = [name for part in chain for name in part.findings]
    return sorted(ranked(findings), key=lambda f: told.index(f.id) if f.id in told else len(told))


def ask(found: Run, options: store.Options) -> Rooms:
    """Each room about its own artefacts."""
    rooms = Rooms()
    codes = found.manifest().get("exit_codes")
    died = isinstance(codes, dict) and any(codes.values())
    snapshots = found.of(Kind.SNAPSHOT)
    chosen = snapshots if len(snapshots) <= SNAPSHOTS_AT_MOST else run.newest_step(snapshots)
    recorded = run.newest_step(found.of(Kind.TRACE))
    logs = found.of(*run.TIMED)
    if chosen:
        rooms.memory = attempt(rooms, lambda: memory.analyze(chosen, options))
    if found.of(Kind.FLIGHT, Kind.COLLECTION, Kind.EXIT) or died:
        rooms.hang = attempt(rooms, lambda: hangs.analyze(found, options))
    if recorded:
        rooms.trace = attempt(rooms, lambda: traces.analyze(recorded, options))
    if any(log.kind is not Kind.LOG for log in logs):
        rooms.steps = attempt(rooms, lambda: steps.analyze(logs, options))
        rooms.empty_step_logs = rooms.steps is None
    return rooms


def attempt(rooms: Rooms, question: Callable[[], Report[Any]]) -> Report[Any] | None:
    """A room's answer; what keeps it from answering is noted, so that the others still count."""
    try:
        return question()
    except WorkbenchError as error:
        rooms.problems.append(error.message)
        return None


@dataclass(frozen=True)
class Crash:
    """An uncaught exception, and the file that tells of it. `symptom`: a rank gets it for another one's fault."""

    gone: ExitFile
    source: str

    @property
    def symptom(self) -> bool:
        return hangs.is_victim(self.gone)

    @property
    def message(self) -> str:
        return f"{self.gone.error}: {self.gone.message}".removesuffix(": ").removeprefix(": ")

    @property
    def place(self) -> str:
        """The innermost line of the user's own code."""
        line = next((f for f in self.gone.traceback if not is_library(f.filename)), None)
        return f"{line.name} ({source_line(line.filename, line.line)})" if line else ""


def first_error(found: Run) -> Crash | None:
    """The earliest error of all ranks and attempts, of one that did not end because of another rank if there is any."""
    known = sorted((Crash(*error) for error in hangs.errors(found)), key=lambda crash: crash.gone.time_ns)
    cause = told_by_launcher(found.manifest().get("cause"))
    if cause and not any(crash.message == cause.message for crash in known):
        known.insert(0, cause)
    return min(known, key=lambda crash: crash.symptom, default=None)


def told_by_launcher(cause: Any) -> Crash | None:
    """`cause` of run.json, which knows a rank's error and no traceback."""
    if not isinstance(cause, dict) or not (cause.get("error") or cause.get("message")):
        return None
    rank = cause.get("rank")
    gone = ExitFile(
        rank=rank if isinstance(rank, int) else -1,
        error=str(cause.get("error") or ""),
        message=first_line(str(cause.get("message") or "")),
    )
    return Crash(gone, str(cause.get("log") or ""))


def first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:300]


def crash_finding(crash: Crash) -> Finding:
    return Finding(
        id=CRASHED,
        severity=Severity.ERROR,
        title=crash_text(crash),
        why="another rank was gone or did not come, and no dump tells which"
        if crash.symptom
        else "it is the earliest error that a rank reported",
        next="read the logs of the other ranks; with `recorders.start` in the script the next run leaves dumps"
        if crash.symptom
        else "read the traceback in the error file, and the rank's log beside it",
        ranks=ranks_of(crash),
        evidence=[Evidence(text=crash.message, source=crash.source, line=crash.place)],
        confidence=0.8,
    )


def crash_text(crash: Crash) -> str:
    name = rank_names(ranks_of(crash)) if ranks_of(crash) else "a rank"
    did = "gave up waiting for another rank:" if crash.symptom else "failed with"
    return f"{name} {did} {crash.message}" + (f" in {crash.place}" if crash.place else "")


def chain_of(rooms: Rooms, crash: Crash | None, manifest: dict[str, Any]) -> list[Link]:
    """From the first cause to the last effect; the first question that has an answer decides."""
    completed = manifest.get("status") == "completed"
    questions: Sequence[Callable[[], list[Link]]] = (
        lambda: out_of_memory(rooms),
        lambda: broken_loss(rooms) if completed or not_finite(crash) else [],
        lambda: hung(rooms),
        lambda: [crashed(crash)] if crash and not crash.symptom and not completed else [],
        lambda: hung(rooms, undecided=True),
        lambda: [crashed(crash)] if crash and not completed else [],
        lambda: broken_loss(rooms),
        lambda: warned(rooms),
    )
    return next((chain for question in questions if (chain := question())), [])


def not_finite(crash: Crash | None) -> bool:
    return bool(crash and re.search(r"\bnan\b|finite", crash.message, re.IGNORECASE))


def ranks_of(crash: Crash) -> list[int]:
    return [crash.gone.rank] if crash.gone.rank >= 0 else []


def crashed(crash: Crash) -> Link:
    if crash.symptom:  # those who wait are no culprits
        return Link(text=crash_text(crash), kind="unknown", findings=[CRASHED])
    return Link(text=crash_text(crash), kind="crashed", ranks=ranks_of(crash), findings=[CRASHED])


def out_of_memory(rooms: Rooms) -> list[Link]:
    """The rank whose memory ran out, what grew before, and who waits for it now."""
    culprits = rooms.hang.data.culprits if rooms.hang else []
    dead = [c for c in culprits if c.out_of_memory]
    if rooms.memory and rooms.memory.verdict.kind == "oom":
        found = rooms.memory.verdict
        finding = next(f for f in rooms.memory.findings if f.id == "memory.oom")
        ranks = found.ranks or sorted(r for c in dead for r in c.ranks)
        step = finding.step if finding.step is not None else next((c.step for c in dead), None)
        root = Link(text=found.sentence, kind="oom", ranks=ranks, step=step, findings=["memory.oom"])
    elif dead:
        first = dead[0]
        root = Link(text=first.title, kind="oom", ranks=first.ranks, step=first.step, findings=["hang.dead"])
    else:
        return []
    return [root, *(link for c in culprits if set(c.ranks) & set(root.ranks) for link in waiting(rooms, c))]


def hung(rooms: Rooms, *, undecided: bool = False) -> list[Link]:
    """The causes of a hang, each followed by those that wait; `undecided`: also where the dumps leave it open."""
    if rooms.hang is None or told_by_steps(rooms):
        return []
    if rooms.hang.verdict.kind == "healthy" or (rooms.hang.verdict.kind == "unknown" and not undecided):
        return []
    links = []
    for culprit in rooms.hang.data.culprits:
        text = culprit.title
        kind = "crashed" if culprit.kind == "dead" and culprit.error else culprit.kind
        ids = [f"hang.{culprit.kind}", *counted(rooms, culprit)]
        links.append(Link(text=text, kind=kind, ranks=culprit.ranks, step=culprit.step, findings=ids))
        links += waiting(rooms, culprit)
    return links


def told_by_steps(rooms: Rooms) -> bool:
    """Two looks at a moving rank show that it is slow; a step log with a straggler shows by how much, and why."""
    kinds = [room.verdict.kind for room in (rooms.hang, rooms.steps) if room]
    return kinds == ["slow", "straggler"]


def counted(rooms: Rooms, culprit: Culprit) -> list[str]:
    """The step log's own word on a skipped collective."""
    found = rooms.steps.findings if rooms.steps else []
    return [f.id for f in found if f.id == "steps.collective_count" and set(f.ranks) & set(culprit.ranks)]


def waiting(rooms: Rooms, culprit: Culprit) -> list[Link]:
    """`ranks 0-2 wait in all_reduce #412 of dp for it`."""
    if not culprit.victims or rooms.hang is None:
        return []
    mine = [w for w in rooms.hang.data.waits if w.rank in culprit.victims]
    first = next((w for w in mine if set(w.waits_for) & set(culprit.ranks)), mine[0] if mine else None)
    where = f" in {first.operation} #{first.seq} of {label(rooms.hang.data, first.group)}" if first else ""
    whom = "it" if len(culprit.ranks) == 1 else "them"
    text = f"{rank_names(culprit.victims)} {agree(culprit.victims, 'waits', 'wait')}{where} for {whom}"
    return [Link(text=text, kind="waiting", ranks=culprit.victims, findings=[f"hang.{culprit.kind}"])]


def label(data: HangData, group: str) -> str:
    return next((g.label for g in data.groups if g.name == group), group)


def broken_loss(rooms: Rooms) -> list[Link]:
    return [link(f) for f in (rooms.steps.findings if rooms.steps else []) if f.id == "steps.nonfinite_loss"]


def warned(rooms: Rooms) -> list[Link]:
    """What is wrong with a run that neither hung nor died: the verdicts of the rooms, the gravest first.

    Traces show how a step could be faster, which is no incident: they count where no step log tells more.
    """
    verdicts = [
        (r, f)
        for r in (rooms.steps or rooms.trace, rooms.memory, rooms.hang)
        if r is not None and r.verdict.status in (Status.WARNING, Status.ERROR)
        for f in r.findings[:1]
        if f.severity is not Severity.INFO
    ]
    if told_by_steps(rooms):
        verdicts = [(r, f) for r, f in verdicts if r is not rooms.hang]
    # A snapshot shows which memory grows, a step log only that some does.
    if any(f.id == "memory.leak" for _, f in verdicts):
        verdicts = [(r, f) for r, f in verdicts if r.verdict.kind != "memory_growth"]
    verdicts.sort(key=lambda pair: -pair[1].severity.weight)
    return [
        Link(text=r.verdict.sentence, kind=r.verdict.kind, ranks=r.verdict.ranks, step=f.step, findings=[f.id])
        for r, f in verdicts
    ]


def link(finding: Finding) -> Link:
    kind = finding.id.partition(".")[2]
    return Link(text=finding.title, kind=kind, ranks=finding.ranks, step=finding.step, findings=[finding.id])


def verdict(rooms: Rooms, chain: Sequence[Link], manifest: dict[str, Any], findings: Sequence[Finding]) -> Verdict:
    """The root cause in one sentence, followed by those who wait for it."""
    asked = {name.partition(".")[0] for part in chain for name in part.findings}
    speaking = [r for r in rooms.reports() if not asked or r.schema.removeprefix("workbench.").split("/")[0] in asked]
    lacking = rooms.problems + [lack for report in speaking for lack in report.verdict.missing]
    if not chain:
        return uneventful(rooms, manifest, lacking)
    root = chain[0]
    behind = [f for f in findings if f.id in root.findings]
    tail = [brief(part, root) for part in chain[1:3] if part.kind == "waiting"]
    ranks = sorted({rank for part in chain if part.kind == root.kind for rank in part.ranks})
    return Verdict(
        status=Status.UNKNOWN if root.kind == "unknown" else status_of(behind) if behind else Status.ERROR,
        kind=root.kind,
        ranks=ranks,
        sentence="; ".join([root.text, *tail[:1]]),
        confidence=max((f.confidence for f in behind), default=0.7),
        missing=lacking,
    )


def brief(part: Link, root: Link) -> str:
    """Who waits, without the operation that the root has named already."""
    named = re.search(r" in (\S+ #\d+ of .+) for ", part.text)
    return part.text.replace(f" in {named[1]}", "") if named and named[1] in root.text else part.text


def uneventful(rooms: Rooms, manifest: dict[str, Any], lacking: list[str]) -> Verdict:
    """Of a run with nothing to blame: healthy, unless it failed all the same."""
    status = manifest.get("status")
    if status in ("failed", "interrupted"):
        codes = manifest.get("exit_codes")
        ends = f", exit codes {codes}" if codes else ""
        text = f"the run {'failed' if status == 'failed' else 'was interrupted'} and left no word of why{ends}"
        return Verdict(status=Status.UNKNOWN, kind="unknown", sentence=text, confidence=0.2, missing=lacking)
    if status == "completed" and not has_steps(rooms, manifest):
        text = "the run ended without one step: its status is completed, but nothing shows that it trained"
        missing = [*lacking, "a step log, which would show the steps"]
        return Verdict(status=Status.UNKNOWN, kind="unknown", sentence=text, confidence=0.2, missing=missing)
    said = [r.verdict.sentence for r in (rooms.steps, rooms.memory, rooms.trace, rooms.hang) if r is not None]
    state = {"completed": "the run completed", "running": "the run is going on"}.get(
        str(status), "nothing is wrong here"
    )
    kind = "healthy" if said or status == "completed" else "unknown"
    return Verdict(
        status=Status.OK if kind == "healthy" else Status.UNKNOWN,
        kind=kind,
        sentence="; ".join([state, *said[:1]]),
        confidence=max((r.verdict.confidence for r in rooms.reports()), default=0.3),
        missing=lacking,
    )


def has_steps(rooms: Rooms, manifest: dict[str, Any]) -> bool:
    """Return whether anything shows that the run trained: a last step, a step log, or artefacts of a job without one.

    A script that does nothing ends with "completed" too.
    """
    return bool(manifest.get("last_step") or rooms.steps or (rooms.reports() and not rooms.empty_step_logs))


def inputs(found: Run, rooms: Rooms) -> list[Input]:
    """What the rooms read, and the files about the run itself."""
    read = {given.path: given for report in rooms.reports() for given in report.inputs}
    own = found.of(Kind.MANIFEST, Kind.ERROR, Kind.EXIT, Kind.COLLECTION)
    return [*read.values(), *(a.given() for a in own)]
