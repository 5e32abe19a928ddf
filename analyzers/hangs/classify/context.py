"""What a verdict rests on, and a culprit with what the scene tells of it."""

from dataclasses import dataclass

from analyzers.hangs.graph.program_order import Programs
from analyzers.hangs.graph.wait_graph import At, Graph
from analyzers.hangs.model import Culprit, Frame, Job, Op
from analyzers.hangs.reading.side_files import Side


@dataclass(frozen=True)
class Scene:
    """All that a verdict may rest on."""

    job: Job
    side: Side
    graph: Graph
    programs: Programs


def begun_ns(scene: Scene, at: At) -> int:
    """When the first rank came to an operation."""
    fronts = (scene.job.ranks[rank].front for rank in scene.graph.arrived(at))
    return min((op.created_ns for op in fronts if op), default=0)


def operation_at(scene: Scene, at: At) -> Op | None:
    arrived = scene.graph.arrived(at)
    return scene.job.ranks[arrived[0]].front if arrived else None


def describe(scene: Scene, at: At) -> str:
    op = operation_at(scene, at)
    return f"{scene.job.operation(op) if op else 'operation'} #{at.seq} of {scene.job.groups[at.group].label}"


def culprit(
    scene: Scene,
    kind: str,
    ranks: list[int],
    at: At,
    hurt: list[int],
    detail: str,
    *,
    frames: list[Frame] | None = None,
    op: Op | None = None,
    step: int | None = None,
    confidence: float = 0.9,
) -> Culprit:
    group = scene.job.groups[at.group]
    op = op or operation_at(scene, at)
    beat = scene.side.heartbeat(ranks[0])
    own = [scene.job.ranks[r].front for r in ranks if r in scene.job.ranks]
    shown = frames or scene.side.main_stack(ranks[0]) or next((scene.job.frames(o) for o in own if o), [])
    return Culprit(
        ranks=ranks,
        kind=kind,
        group=group.name,
        group_desc=group.label,
        seq=op.seq if op else at.seq,
        operation=scene.job.operation(op) if op else None,
        frames=shown,
        victims=[rank for rank in hurt if rank not in ranks],
        step=(step if step is not None else (beat.step if beat else None)) or None,
        detail=detail,
        confidence=confidence,
    )
