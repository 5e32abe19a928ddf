"""Answers -> `Report[HangData]`: one verdict, the chain below it, and what evidence was lacking."""

from collections.abc import Sequence
from itertools import chain

from analyzers import run, store
from analyzers.errors import InputError
from analyzers.hangs.classify.context import Scene
from analyzers.hangs.classify.culprits import classify
from analyzers.hangs.classify.progress import moved
from analyzers.hangs.findings.sentences import finding_of, sentence
from analyzers.hangs.graph.locations import MOST_RANKS
from analyzers.hangs.graph.locations import crowds as places
from analyzers.hangs.graph.program_order import Programs
from analyzers.hangs.graph.wait_graph import At, Graph, build, roots
from analyzers.hangs.model import Culprit, HangData, Job, Wait, is_library, user_frame
from analyzers.hangs.reading.dump_sets import DumpSet, open_set
from analyzers.hangs.reading.exits import Death, exception_text, is_victim
from analyzers.hangs.reading.job import NO_STACKS, OVERWRITTEN, load_job
from analyzers.hangs.reading.side_files import Side
from analyzers.hangs.reading.step_times import timing
from analyzers.hangs.reading.torchrun_workers import last_lines
from analyzers.report import Evidence, Finding, Report, Severity, Status, Verdict, ranked, tool_version
from analyzers.words import agree, rank_names

CROWDS_AT_MOST, CALLERS_AT_MOST = 4, 5
COPY_WHOLE = "collect the dumps again, or copy them whole"
SCHEMA = "workbench.hang/1"
CERTAINTY = (
    "dead",
    "mismatch",
    "skipped",
    "order_cycle",
    "host_stuck",
    "unmatched_p2p",
    "lagging",
    "all_arrived",
    "slow",
    "unknown",
)
"""Classes, those that best explain the others first."""


def analyze(found: run.Run, options: store.Options | None = None) -> Report[HangData]:
    """Who hangs whom, and why, from the newest set of dumps in a run.

    Raises:
        InputError: No dump lies there, nor a word on how ranks ended.
    """
    options = options or store.Options()
    dumps, side = open_set(found)
    job = load_job(dumps.rounds[0], side, options)
    if not job.ranks and not (side.exits or side.exit_codes or side.collection or side.stack_files):
        why = "; ".join(unreadable(job)[:3])
        raise InputError(f"{found.root}: no readable Flight Recorder dump" + (f": {why}" if why else ""), COPY_WHOLE)
    scene = Scene(job, side, build(job, side), Programs(job))
    culprits = find_culprits(scene)
    culprits = moved(culprits, job, dumps, side, options)
    return assemble(scene, dumps, culprits)


def find_culprits(scene: Scene) -> list[Culprit]:
    """The causes, each once, the best explanation first."""
    found = [c for root in roots(scene.graph) if (c := classify(scene, root))]
    found = without_echoes(scene, too_few(scene, found))
    named = {rank for c in found for rank in c.ranks}
    found += [c for c in deaths(scene) if not named.issuperset(c.ranks)]
    unique = {(c.kind, tuple(c.ranks), c.group, c.seq): c for c in found}
    return sorted(unique.values(), key=lambda c: (CERTAINTY.index(c.kind), -len(c.victims), c.ranks))


def too_few(scene: Scene, found: list[Culprit]) -> list[Culprit]:
    """When most dumps are missing for no known reason, their absence accuses nobody."""
    silent = [c for c in found if c.kind == "dead" and c.detail == "it left no dump"]
    seen = [c for c in found if c not in silent and c.kind != "dead"]
    if explained := [c for c in silent if any(is_victim_of(scene, c.ranks[0], other) for other in seen)]:
        found = [c for c in found if c not in explained]
        silent = [c for c in silent if c not in explained]
    if len(silent) > max(1, scene.job.world_size // 4):
        rest = [c for c in found if c not in silent]
        ranks = sorted(rank for c in silent for rank in c.ranks)
        hurt = sorted({rank for c in silent for rank in c.victims}.difference(ranks))
        return [*rest, Culprit(ranks=ranks, kind="unknown", detail="they left no dump", victims=hurt, confidence=0.2)]
    return found


def without_echoes(scene: Scene, found: list[Culprit]) -> list[Culprit]:
    """Without ranks that ended because they lost the connection to another one, where somebody else is to blame."""
    ends = {rank: death for c in found if c.kind == "dead" for rank in c.ranks if (death := scene.side.death(rank))}
    first_hand = [c for c in found if not any(rank in ends and ends[rank].victim for rank in c.ranks)]
    return first_hand if first_hand or any(not d.victim for d in all_ends(scene)) else found


def all_ends(scene: Scene) -> list[Death]:
    return [death for rank in range(scene.job.world_size) if (death := scene.side.death(rank))]


def is_victim_of(scene: Scene, rank: int, culprit: Culprit) -> bool:
    """Whether a rank without a dump shares a group with ranks that a known culprit keeps waiting: so it waits too."""
    kept = {*culprit.ranks, *culprit.victims}
    return any(rank in g.ranks and kept.intersection(g.ranks) for g in scene.job.groups)


def deaths(scene: Scene) -> list[Culprit]:
    """Ranks that ended on their own account although nobody was seen waiting for them."""
    side = scene.side
    ends = [d for d in all_ends(scene) if not d.victim]
    timed = [d for d in ends if d.exit]
    signalled = [d for d in ends if not d.exit]
    first = signalled or sorted(timed, key=lambda d: (not (d.exit and d.exit.out_of_memory), d.time_ns))[:1]
    others = range(scene.job.world_size)
    return [
        Culprit(
            ranks=[d.rank],
            kind="dead",
            detail=d.how,
            frames=d.exit.traceback if d.exit else [],
            step=d.exit.step if d.exit else last_step(side, d.rank),
            error=d.exit.error if d.exit else None,
            out_of_memory=bool(d.exit and d.exit.out_of_memory),
            victims=[rank for rank in others if rank != d.rank],
        )
        for d in first
    ]


def last_step(side: Side, rank: int) -> int | None:
    """The step that a rank's heartbeat was in."""
    beat = side.heartbeat(rank)
    return (beat.step or None) if beat else None  # 0: not in any step


def assemble(scene: Scene, dumps: DumpSet, culprits: list[Culprit]) -> Report[HangData]:
    findings = ranked([finding_of(culprit, evidence(scene, culprit)) for culprit in culprits])
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=[a.given() for look in dumps.rounds for a in look],
        verdict=verdict(scene, culprits),
        findings=findings + notes(scene),
        data=HangData(
            world_size=scene.job.world_size,
            ranks_with_dump=sorted(scene.job.ranks),
            groups=scene.job.groups,
            culprits=culprits,
            waits=waits(scene.job, scene.graph),
        ),
    )


def verdict(scene: Scene, culprits: list[Culprit]) -> Verdict:
    lacking = missing(scene)
    if not culprits:
        return without_culprit(scene, lacking)
    first = culprits[0]
    known = [c for c in culprits if c.kind != "unknown"]
    return Verdict(
        status=Status.UNKNOWN if not known else Status.WARNING if first.kind == "slow" else Status.ERROR,
        kind=first.kind,
        ranks=sorted({rank for c in known for rank in c.ranks}),
        sentence="; ".join(sentence(c) for c in (known or culprits)[:3]),
        confidence=round(first.confidence * (0.85 if scene.job.unreadable else 1.0), 2),
        missing=lacking,
    )


def without_culprit(scene: Scene, lacking: list[str]) -> Verdict:
    """Healthy, where the dumps could have shown a hang and nobody gave up waiting afterwards."""
    gave_up = sorted(rank for rank, gone in scene.side.exits.items() if is_victim(gone))
    blind = any("DETAIL" in lack or OVERWRITTEN in lack for lack in scene.job.lacks)
    few = len(scene.job.ranks) * 2 <= scene.job.world_size
    hidden = bool(gave_up) or blind or few or not any(state.ops for state in scene.job.ranks.values())
    sentence = "the dumps do not show who waits for whom" if hidden else "no rank waits for another one"
    if not scene.job.ranks and scene.side.stack_files:
        standing = "; ".join(crowd.said() for crowd in places(scene.job, scene.side)[:CROWDS_AT_MOST])
        sentence = f"{standing}; stacks alone do not tell who waits for whom"
    if gave_up:
        ends = exception_text(scene.side.exits[gave_up[0]])
        sentence = f"{rank_names(gave_up)} gave up waiting ({ends}), and the dumps do not show for whom"
    return Verdict(
        status=Status.UNKNOWN if hidden else Status.OK,
        kind="unknown" if hidden else "healthy",
        sentence=sentence,
        confidence=0.2 if hidden else 0.8,
        missing=lacking,
    )


def missing(scene: Scene) -> list[str]:
    """What would have made the verdict firmer."""
    job, side = scene.job, scene.side
    lacks = {
        what: [r for r in ranks if what != NO_STACKS or r not in side.stack_files] for what, ranks in job.lacks.items()
    }
    lacking = [f"{what} {rank_names(ranks)}" for what, ranks in lacks.items() if ranks]
    lacking += [
        f"no dump of {rank_names(ranks)}" + (f": {why}" if why else "") for why, ranks in absent(job, side).items()
    ]
    inferred = [g.label for g in job.groups if g.source == "entries"]
    if inferred:
        lacking.append(f"members of {', '.join(inferred[:5])} are inferred from who used them")
    return [*unreadable(job), *lacking[:50]]


def unreadable(job: Job) -> list[str]:
    """`dump of rank 3 is unreadable: why`, ranks with the same trouble together."""
    ranks: dict[str, list[int]] = {}
    for rank, why in sorted(job.unreadable.items()):
        ranks.setdefault(why, []).append(rank)
    return [
        f"{agree(r, 'dump', 'dumps')} of {rank_names(r)} {agree(r, 'is', 'are')} unreadable: {w}"
        for w, r in ranks.items()
    ]


def absent(job: Job, side: Side) -> dict[str, list[int]]:
    """The ranks without a dump, by what is known of why."""
    ranks: dict[str, list[int]] = {}
    for rank in (r for r in range(min(job.world_size, MOST_RANKS)) if r not in job.ranks and r not in job.unreadable):
        death, asked = side.death(rank), side.asked(rank)
        ranks.setdefault(death.how if death else asked.status if asked else "", []).append(rank)
    return ranks


def evidence(scene: Scene, culprit: Culprit) -> list[Evidence]:
    """What a finding rests on beside what its words say: stack, timing, log, and where the victims wait."""
    own = (stack_of(scene.side, culprit), home_of(scene.side, culprit), last_words(scene.side, culprit))
    return [*chain.from_iterable(own), *crowds(scene, culprit.victims)]


def stack_of(side: Side, culprit: Culprit) -> list[Evidence]:
    """The line it stands in, and who called that."""
    rank, own = culprit.ranks[0], [f for f in culprit.frames if not is_library(f)]
    if not own:
        return []
    line, *callers = own
    called = f", called by {', '.join(f.name for f in callers[:CALLERS_AT_MOST])}" if callers else ""
    text = f"{rank_names(culprit.ranks)}: {line.name}{called}"
    return [Evidence(text=text, line=f"{line.filename}:{line.line}", source=str(side.stack_files.get(rank, "")))]


def home_of(side: Side, culprit: Culprit) -> list[Evidence]:
    """Which process on which host it is: where to log in."""
    known = [(r, side.groups[r]) for r in culprit.ranks[:CALLERS_AT_MOST] if r in side.groups and side.groups[r].host]
    told = ", ".join(
        f"rank {rank} {'was' if culprit.kind == 'dead' else 'is'} process {f.pid} on {f.host}" for rank, f in known
    )
    return [Evidence(text=told)] if told else []


def last_words(side: Side, culprit: Culprit) -> list[Evidence]:
    """How long a living rank has been there; how the log of a dead one ends."""
    rank = culprit.ranks[0]
    if culprit.kind != "dead":
        told = timing(side, rank)
        return (
            [Evidence(text=f"{rank_names([rank])}: {told}", source=str(side.step_logs.get(rank, "")))] if told else []
        )
    log = side.log_files.get(rank)
    said = last_lines(log) if log else ""
    return [Evidence(text=f"its log ends with: {said}", source=str(log))] if said else []


def crowds(scene: Scene, victims: Sequence[int]) -> list[Evidence]:
    """Where the victims wait, those in the same place together, most of them first."""
    together: dict[tuple[str, str], list[int]] = {}
    for rank in victims:
        if place := waiting_line(scene, rank):
            together.setdefault(place, []).append(rank)
    most = sorted(together.items(), key=lambda one: -len(one[1]))[:CROWDS_AT_MOST]
    return [
        Evidence(text=f"{rank_names(ranks)} {agree(ranks, 'waits', 'wait')} in {name}", line=line)
        for (name, line), ranks in most
    ]


def waiting_line(scene: Scene, rank: int) -> tuple[str, str] | None:
    """What a rank stands in, and the line that issued it, or where its dump has no stacks the one it stands at."""
    job, state = scene.job, scene.job.ranks.get(rank)
    if state is None or state.front is None:
        return None
    front, line = state.front, job.line(state.front) or user_frame(scene.side.main_stack(rank))
    name = f"{job.operation(front)} of {job.groups[front.group].label}"
    return name, f"{line.filename}:{line.line}" if line else ""


def waits(job: Job, graph: Graph) -> list[Wait]:
    return [wait(job, graph, rank, at) for rank, at in sorted(graph.stands.items())]


def wait(job: Job, graph: Graph, rank: int, at: At) -> Wait:
    front = job.ranks[rank].front
    assert front is not None
    return Wait(rank, graph.absent[at], job.groups[at.group].name, at.seq, job.operation(front))


def notes(scene: Scene) -> list[Finding]:
    """Findings about the dumps themselves."""
    damaged = scene.job.unreadable
    if not damaged:
        return []
    return [
        Finding(
            id="hang.unreadable_dump",
            severity=Severity.WARNING,
            title=f"{len(damaged)} {'dump' if len(damaged) == 1 else 'dumps'} could not be read",
            why="what they held may be the cause, or what the others wait for",
            next=COPY_WHOLE,
            ranks=sorted(damaged),
            confidence=1.0,
        )
    ]
