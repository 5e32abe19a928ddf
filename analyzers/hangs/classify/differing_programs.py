"""Find the culprits of a hang in which ranks skipped operations, issued different ones, or changed their order."""

from collections.abc import Iterable
from dataclasses import replace

from analyzers.hangs.classify.cause import DEFAULT_CONFIDENCE, Cause, HangContext, make_cause, ranks_in_op
from analyzers.hangs.graph.divergence import Divergence
from analyzers.hangs.graph.program_order import Deviation
from analyzers.hangs.graph.wait_graph import OpNode
from analyzers.hangs.model import HangClass, Reason

_UNDECIDED_CONFIDENCE = 0.5
_LESS_PER_FURTHER_VARIANT = 0.1


def blame_deviation(context: HangContext, deviations: list[Deviation], node: OpNode, involved: Iterable[int]) -> Cause:
    """Return a `Cause` that blames ranks whose operations deviate from other ranks with the same program.

    The earliest of `deviations` decides, because later ones may be its consequences. The culprits are all ranks whose
    deviation has the same class and the same expected operation. `involved` are the ranks that wait for them in
    operation `node`.
    """
    job = context.job
    first = min(deviations, key=lambda d: d.issued.created_ns)
    same = [d for d in deviations if (d.kind, d.expected.signature) == (first.kind, first.expected.signature)]
    ranks = sorted(d.rank for d in same)
    skipped_message = first.expected.p2p and first.kind is HangClass.SKIPPED
    kind = HangClass.UNMATCHED_P2P if skipped_message else first.kind
    frames = job.frames(first.issued)
    victims = sorted(set(involved))
    cause = make_cause(context, kind, Reason.DEVIATION, ranks, node, victims, frames=frames, op=first.expected)
    others = [first.expected.rank]
    cause = replace(
        cause,
        issued=ranks_in_op(context, ranks, first.issued),
        expected=ranks_in_op(context, others, first.expected),
    )
    return cause.in_group(job.groups[_find_own_group(context, first)])


def _find_own_group(context: HangContext, deviation: Deviation) -> int:
    """Return the index in `Job.groups` of the process group in which a deviating rank should have issued an operation.

    The expected operation was recorded by another rank, which may be in another group of the same mesh dimension. The
    result is then the deviating rank's own group with the same description.
    """
    groups = context.job.groups
    expected = deviation.expected.group
    own = context.job.ranks[deviation.rank].positions
    same = [g for g in own if g == expected or groups[g].desc == groups[expected].desc]
    return expected if expected in same or not same else same[0]


def blame_divergence(context: HangContext, divergence: Divergence, involved: Iterable[int]) -> Cause:
    """Return a `Cause` which says that members of a group issued different operations under one sequence number.

    `divergence` describes these operations. If nothing shows which members diverged, all members are culprits. If at
    most half of the members deviate from the program of the others, these are blamed by `blame_deviation`, because an
    operation skipped in another group also makes the operations in this group differ. `involved` are further ranks that
    wait.
    """
    node, members = OpNode(divergence.group, divergence.seq), divergence.members
    deviations = [d for m in members if (d := context.programs.deviation(m)) and d.kind is not HangClass.MISMATCH]
    # Where most members deviate, it is rather the other ranks that do.
    if deviations and len(deviations) * 2 <= len(members):
        return blame_deviation(context, deviations, node, [*involved, *members])
    ranks = divergence.culprits or sorted(members)
    confidence = DEFAULT_CONFIDENCE if divergence.culprits else _UNDECIDED_CONFIDENCE
    cause = make_cause(
        context,
        HangClass.SKIPPED if divergence.skipped else HangClass.MISMATCH,
        divergence.reason,
        ranks,
        node,
        sorted({*involved, *members} - set(ranks)),
        frames=context.job.frames(divergence.issued),
        op=divergence.expected if divergence.skipped else divergence.issued,
        confidence=confidence - _LESS_PER_FURTHER_VARIANT * (len(divergence.variants) > 2),
    )
    others = [m for m in members if m not in ranks]
    return replace(
        cause,
        sides=tuple(ranks_in_op(context, variant.ranks, variant.op) for variant in divergence.variants),
        issued=ranks_in_op(context, ranks, divergence.issued),
        expected=ranks_in_op(context, others, divergence.expected) if divergence.expected else None,
        elements=divergence.elements,
        members=len(members),
    )
