"""What kind of cause each root of the wait-for graph is, and who is to blame."""

from collections.abc import Iterable

import msgspec

from analyzers.hangs.classify.context import Scene, begun_ns, culprit, describe
from analyzers.hangs.classify.in_flight import too_young, young
from analyzers.hangs.graph.missed_operation import first_missed
from analyzers.hangs.graph.program_order import Departure
from analyzers.hangs.graph.signatures import Divergence, first_divergence
from analyzers.hangs.graph.wait_graph import At, Node, has_come, victims
from analyzers.hangs.model import Culprit, Job, Op
from analyzers.hangs.reading.exits import Death, is_victim
from analyzers.hangs.reading.gloo_messages import in_message
from analyzers.hangs.reading.p2p import one_sided, peer_of, unlike_halves
from analyzers.hangs.reading.side_files import Side
from analyzers.words import rank_names

HELD = {
    "stopped": "its process is stopped: kill -CONT lets it go on",
    "in the kernel": "its process waits in the kernel, as it does for storage that hangs",
}
OUTSIDE = ("", "step", "between")
"""Where a heartbeat is in no phase."""


def classify(scene: Scene, root: list[Node]) -> Culprit | None:
    """The cause that a root stands for; None for one that explains nothing."""
    ranks = sorted(node for node in root if isinstance(node, int))
    places = [node for node in root if isinstance(node, At)]
    hurt = victims(scene.graph, root)
    if len(ranks) > 1:
        return ring(scene, ranks, places, hurt)
    if ranks:
        return lone(scene, ranks[0], hurt) if hurt else None
    return gathered(scene, places[0])


def ring(scene: Scene, ranks: list[int], places: list[At], hurt: list[int]) -> Culprit | None:
    """Ranks that wait for each other; a skipped operation leaves the same picture as a different order."""
    lost_front = any(scene.job.ranks[rank].overwritten for rank in ranks if rank in scene.job.ranks)
    if lost_front or all(young(scene, place) for place in places):
        return None
    at = min(places)
    # Whoever left the program of its sisters closed the ring; without such a one the order of groups did.
    left = [d for rank in ranks if (d := scene.programs.departure(rank))]
    # Another operation in the same place is a mismatch; the same one in another group's place is the order.
    if left := [d for d in left if d.kind != "mismatch" or d.op.group == d.expected.group]:
        return departed(scene, left, at, [*ranks, *hurt])
    if one_sided(scene.job, ranks):
        return culprit(scene, "unmatched_p2p", ranks, at, hurt, "each waits for the other's half")
    if lost := sorted({rank for place in places if place.sender >= 0 for rank in scene.graph.absent[place]}):
        at = min(place for place in places if place.sender >= 0)
        others = sorted({*ranks, *hurt} - set(lost))
        return culprit(scene, "unmatched_p2p", lost, at, others, "it never issued the other half")
    steps = (f"{rank_names(scene.graph.arrived(place))} in {describe(scene, place)}" for place in sorted(places))
    odd = minority(scene, ranks, places)
    others = sorted({*ranks, *hurt} - set(odd))
    return culprit(scene, "order_cycle", odd or ranks, at, others if odd else hurt, "; ".join(steps))


def departed(scene: Scene, left: list[Departure], at: At, involved: Iterable[int]) -> Culprit:
    """Ranks that left the program of their sisters, all in the way of the first of them."""
    first = min(left, key=lambda d: d.op.created_ns)
    alike = [d for d in left if (d.kind, d.expected.signature) == (first.kind, first.expected.signature)]
    ranks = sorted(d.rank for d in alike)
    kind = "unmatched_p2p" if first.expected.p2p and first.kind == "skipped" else first.kind
    mine, theirs = (scene.job.operation(op) for op in (first.op, first.expected))
    detail = f"it issued {mine} where the others issue {theirs}"
    found = culprit(
        scene, kind, ranks, at, sorted(set(involved)), detail, frames=scene.job.frames(first.op), op=first.expected
    )
    group = scene.job.groups[home(scene, first)]
    return msgspec.structs.replace(found, group=group.name, group_desc=group.label)


def home(scene: Scene, departure: Departure) -> int:
    """The departed rank's own group of the expected operation's kind: a sister may be in another one."""
    wanted = scene.job.groups[departure.expected.group]
    own = scene.job.ranks[departure.rank].positions
    same = [g for g in own if g == departure.expected.group or scene.job.groups[g].desc == wanted.desc]
    return departure.expected.group if departure.expected.group in same or not same else same[0]


def minority(scene: Scene, ranks: list[int], places: list[At]) -> list[int]:
    """The ranks of a ring that are in fewer than half of its places' hands: they left the others' order."""
    inside = set(ranks)
    sides = sorted((sorted(inside.intersection(scene.graph.arrived(place))) for place in places), key=len)
    return sorted(rank for side in sides[:-1] for rank in side) if sum(map(len, sides[:-1])) < len(sides[-1]) else []


def lone(scene: Scene, rank: int, hurt: list[int]) -> Culprit | None:
    """One rank that others wait for and that stands in no recorded operation."""
    places = [at for at in scene.graph.waiters(rank) if not young(scene, at)]
    if not places:
        return None
    missed = scene.programs.first_missed(rank)
    # A stage waits in its recv for most of a step, so of two places that tell no more a collective is the nearer one.
    at = min(places, key=lambda p: (not is_at(scene.job, missed, p), p.sender >= 0, begun_ns(scene, p)))
    if missed is None:
        at = first_missed(scene.job, rank, places) or at
    if death := scene.side.death(rank):
        return died(scene, death, at, hurt)
    if at.sender < 0 and (parted := first_divergence(scene.job, at.group, at.seq)):
        return from_divergence(scene, parted, [rank, *hurt])
    if rank not in scene.job.ranks:
        return silent(scene, rank, at, hurt)
    if left := scene.programs.departure(rank):
        return departed(scene, [left], at, hurt)
    return out_of_reach(scene, rank, at, hurt)


def out_of_reach(scene: Scene, rank: int, at: At, hurt: list[int]) -> Culprit:
    """A rank whose recorder holds nothing wrong: its stack, its steps and its later operations tell where it is."""
    frames = scene.side.main_stack(rank)
    later = went_on(scene, rank, at)
    if in_message(frames) or (at.sender >= 0 and later):
        detail = "its partner never issued the other half"
        return culprit(scene, "unmatched_p2p", [rank], at, hurt, detail, frames=frames)
    if later:
        return culprit(scene, "skipped", [rank], at, hurt, "it issued later operations without this one", frames=frames)
    return culprit(scene, "host_stuck", [rank], at, hurt, host_detail(scene, rank), frames=frames)


def died(scene: Scene, death: Death, at: At, hurt: list[int]) -> Culprit:
    """A rank that ended; those that lost the connection to it are its victims too."""
    side = scene.side
    lost = [rank for rank, gone in side.exits.items() if is_victim(gone)]
    found = culprit(scene, "dead", [death.rank], at, sorted({*hurt, *lost}), death.how)
    if death.exit is None:
        return msgspec.structs.replace(found, frames=[])
    error = {"frames": death.exit.traceback, "error": death.exit.error, "out_of_memory": death.exit.out_of_memory}
    return msgspec.structs.replace(found, **error, step=death.exit.step or found.step or None)


def is_at(job: Job, op: Op | None, at: At) -> bool:
    """Whether a sister's operation stands for this place: in a group of the same kind, by the same number."""
    if op is None or op.p2p != (at.sender >= 0) or job.groups[op.group].desc != job.groups[at.group].desc:
        return False
    return op.p2p or op.seq == at.seq


def silent(scene: Scene, rank: int, at: At, hurt: list[int]) -> Culprit:
    """A rank without a dump whose end nobody recorded."""
    asked = scene.side.asked(rank)
    if asked and asked.status == "timeout":
        return culprit(
            scene,
            "host_stuck",
            [rank],
            at,
            hurt,
            HELD.get(asked.process or "", "it did not answer"),
            frames=scene.side.main_stack(rank),
            confidence=0.7,
        )
    return culprit(scene, "dead", [rank], at, hurt, "it left no dump", confidence=0.6)


def host_detail(scene: Scene, rank: int) -> str:
    """Where the heartbeat and the channel of the dump place a rank."""
    asked = scene.side.asked(rank)
    if asked is None:
        return ""
    beat = asked.heartbeat
    phase = f"in phase {beat.phase} of step {beat.step}" if beat and beat.step and beat.phase not in OUTSIDE else ""
    deaf = "it answers no Python request, so something holds the GIL" if is_deaf(scene.side, rank) else ""
    return "; ".join(part for part in (phase, deaf, HELD.get(asked.process or "", "")) if part)


def is_deaf(side: Side, rank: int) -> bool:
    """Whether a rank answered, and never by what needs the GIL."""
    looks = side.collection.rounds if side.collection else []
    answers = [asked for look in looks if (asked := look.ranks.get(rank)) and asked.status == "ok"]
    return bool(answers) and all(asked.channel == "json" and asked.stacks != "http" for asked in answers)


def went_on(scene: Scene, rank: int, at: At) -> bool:
    """Whether a rank issued operations after others had begun to wait for it, or is in a later step than they are."""
    waiting = [scene.job.ranks[r].front for r in scene.graph.arrived(at)]
    since = max((op.created_ns for op in waiting if op), default=0)
    if not scene.programs.known(rank) and any(op.created_ns > since for op in scene.job.ranks[rank].ops):
        return True
    mine = scene.side.heartbeat(rank)
    theirs = [beat.step for r in scene.graph.arrived(at) if (beat := scene.side.heartbeat(r))]
    return bool(mine and theirs and mine.step > max(theirs))


def gathered(scene: Scene, at: At) -> Culprit | None:
    """An operation that everyone who matters has come to, and that does not complete."""
    job = scene.job
    arrived = scene.graph.arrived(at)
    hurt = victims(scene.graph, [at, *arrived])
    if at.sender >= 0:
        return None if at in scene.graph.soft or young(scene, at) else both_halves(scene, at, hurt)
    parted = first_divergence(job, at.group, at.seq)
    if parted:
        return from_divergence(scene, parted, [*arrived, *hurt])
    if too_young(scene, at) or young(scene, at) or at in scene.graph.soft:
        return None
    members = job.groups[at.group].ranks
    done = [m for m in members if m not in arrived and has_come(job.ranks.get(m), at)]
    others = sorted({*hurt, *arrived} - set(arrived))
    if done:
        return culprit(
            scene, "lagging", arrived, at, others, f"{len(done)} of {len(members)} members have completed it"
        )
    return culprit(scene, "all_arrived", arrived, at, others, "every member is in it", confidence=0.8)


def both_halves(scene: Scene, at: At, hurt: list[int]) -> Culprit | None:
    """A send and a recv that have met and do not complete; the lower rank speaks for the pair."""
    front = scene.job.ranks[at.sender].front
    found = peer_of(scene.job, front) if front else None
    if found is None:
        return None
    if scene.graph.absent[scene.graph.stands[found[1]]]:  # what the peer's batch lacks may be this rank's to issue
        return culprit(scene, "unmatched_p2p", [at.sender], at, hurt, "it is in another launch than its peers expect")
    if found[1] < at.sender:
        return None
    pair = [at.sender, found[1]]
    if front and (unlike := unlike_halves(scene.job, front, found)):
        return culprit(scene, "mismatch", pair, at, hurt, unlike, confidence=0.7)
    return culprit(scene, "all_arrived", pair, at, hurt, "both halves were issued")


def from_divergence(scene: Scene, parted: Divergence, involved: Iterable[int]) -> Culprit:
    """The culprits of a mismatch; where nothing tells the sides apart both are named."""
    job = scene.job
    at = At(parted.group, parted.seq)
    members = [m for side in parted.sides for m in side]
    left = [d for m in members if (d := scene.programs.departure(m)) and d.kind != "mismatch"]
    if left and len(left) * 2 <= len(members):
        return departed(scene, left, at, [*involved, *members])
    ranks = parted.ranks or sorted(m for side in parted.sides for m in side)
    hurt = sorted({*involved, *(m for side in parted.sides for m in side)} - set(ranks))
    kind = "skipped" if parted.skipped else "mismatch"
    detail = parted.why if parted.skipped else contrast(job, parted)
    sure = (0.9 if parted.ranks else 0.5) - 0.1 * (len(parted.sides) > 2)
    shown = parted.expected if parted.skipped else parted.op
    frames = job.frames(parted.op) if parted.op else []
    return culprit(scene, kind, ranks, at, hurt, detail, frames=frames, op=shown, confidence=sure)


def contrast(job: Job, parted: Divergence) -> str:
    """`all_reduce 8x8 Float instead of all_reduce 4x4 Float (why)`."""
    if len(parted.sides) == 1:
        return parted.why
    if parted.op is None or parted.expected is None:
        shown = [f"{len(side)}" for side in parted.sides]
        return f"sides of {' and '.join(shown)} ranks; {parted.why}"
    mine, theirs = job.signature(parted.op), job.signature(parted.expected)
    return f"{mine.operation} {mine.shape} instead of {theirs.operation} {theirs.shape} ({parted.why})"
