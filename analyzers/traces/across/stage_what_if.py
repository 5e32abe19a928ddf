"""Estimate the time that a pipeline would save if one of its stages computed as fast as the others."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from analyzers.traces.across.lateness import Lateness
from analyzers.traces.across.rank_waits import RankComparison
from analyzers.traces.across.stage_replay import StageReplay, meetings, program_of
from analyzers.traces.across.stages import Kernel, Message, UnknownStages, find_stages, messages_of, partners
from analyzers.traces.across.what_if import WORTH, Change, WhatIf
from analyzers.traces.loading import Recording
from analyzers.traces.reading.trace import NO_STEP

_OFF_AT_MOST = 0.05
"""The largest accepted error of the simulation, relative to the recorded time of the job.

If the job, simulated as recorded, is off by more, no answer is given.
"""


def job_what_ifs(recordings: Sequence[Recording], comparison: RankComparison | None) -> tuple[list[WhatIf], str]:
    """Return the possible savings of a job, and a text on why the savings of its pipeline stages are unknown.

    The text is empty if they are known. `recordings` are of the same part of the run, `comparison` compares their
    collectives. If the job sends messages between pipeline stages, only the savings by stage are returned, because a
    simulation of the collectives alone ignores that ranks wait for messages. If the stages are unknown, the savings
    from this simulation are returned nevertheless.
    """
    answers = comparison.what_ifs if comparison else []
    try:
        of_stages = _stage_what_ifs(recordings, comparison.lateness if comparison else None)
    except UnknownStages as error:
        return answers, str(error)
    return (answers if of_stages is None else of_stages), ""


def _stage_what_ifs(recordings: Sequence[Recording], lateness: Lateness | None) -> list[WhatIf] | None:
    """Return what the job would save if each of its pipeline stages computed only as long as the others.

    Answers that save more than 1 % are returned, the largest saving first. `recordings` are of the same part of the
    run, `lateness` has their matched collectives (None: there are none). The result is None if the job sends no
    messages between ranks.

    Raises:
        UnknownStages: The job sends messages, but its stages cannot be found or simulated; the text says why.
    """
    messages = {one.rank: messages_of(one) for one in recordings if one.rank is not None}
    if not any(messages.values()):
        return None
    by_rank = {one.rank: one for one in recordings if one.rank is not None}
    if len(by_rank) < len(recordings):
        raise UnknownStages("several recordings are of one rank, or of none")
    stages = find_stages(by_rank, messages)
    replay = _replay_of(by_rank, messages, lateness)
    before = replay.duration({})
    if abs(before - replay.recorded) > _OFF_AT_MOST * replay.recorded:
        raise UnknownStages(f"simulated as recorded, the job is off by {abs(before / replay.recorded - 1):.0%}")
    compute = [[replay.programs[rank].compute for rank in ranks] for ranks in stages]
    steps = {step for one in recordings for step in one.column("step").tolist() if step != NO_STEP}
    answers = [
        WhatIf(
            change=Change.STAGE_AS_OTHERS,
            name="",
            rank=None,
            stage=stage,
            ranks=ranks,
            steps=max(1, len(steps)),
            window_ns=before,
            saved_ns=max(0, before - replay.duration(dict(zip(ranks, _shares_left(compute, stage), strict=True)))),
        )
        for stage, ranks in enumerate(stages)
    ]
    return sorted((row for row in answers if row.saved_ns > WORTH * before), key=lambda row: -row.saved_ns)


def _shares_left(compute: Sequence[Sequence[int]], stage: int) -> list[float]:
    """Return, for each rank of a stage, the factor on its computing time if the stage computed as long as the others.

    `compute[stage]` has the computing time (ns) of each rank of a stage. The time of a stage is the median of its
    ranks; the target is the lower median over the other stages. A rank that already takes less keeps its time (factor
    1).
    """
    others = sorted(int(np.median(ranks)) for number, ranks in enumerate(compute) if number != stage)
    typical = others[(len(others) - 1) // 2]
    return [min(1.0, typical / max(own, 1)) for own in compute[stage]]


def _replay_of(
    recordings: dict[int, Recording], messages: dict[int, list[Message]], lateness: Lateness | None
) -> StageReplay:
    """Return a simulation of all ranks of a job that send messages.

    `recordings` and `messages` are {rank: its recording, or its sends and receives}. `lateness` has the matched
    collectives and the clocks of the ranks; it is None if there are no matched collectives.

    Raises:
        UnknownStages: The clocks of the ranks cannot be compared, or the sends of some ranks do not match the receives.
    """
    ahead = _clocks_ahead(recordings, lateness)
    steps = {rank: one.column("step") for rank, one in recordings.items()}
    pairs = partners(messages, steps) | (_collective_partners(lateness, messages) if lateness else {})
    programs = {
        rank: program_of(one, messages[rank], ahead[rank]) for rank, one in recordings.items() if messages[rank]
    }
    receives = {(rank, one.kernel) for rank, own in messages.items() for one in own if not one.sends}
    return StageReplay(programs, meetings(programs, pairs, receives))


def _clocks_ahead(recordings: dict[int, Recording], lateness: Lateness | None) -> dict[int, int]:
    """Return {rank: by how many ns its clock is ahead of the first rank's, in the middle of its recording}.

    Raises:
        UnknownStages: The offset of some rank's clock is unknown, because no collective shows it.
    """
    hosts = {one.trace.header.get("host") for one in recordings.values()}
    if len(hosts) == 1 and None not in hosts:
        return dict.fromkeys(recordings, 0)
    clocks = {clock.rank: clock for clock in lateness.clocks} if lateness else {}
    unknown = [rank for rank in recordings if rank not in clocks or clocks[rank].low_ns is None]
    if unknown:
        raise UnknownStages(f"no collective shows how far the clock of rank {unknown[0]} is from the others'")
    middle = {rank: np.array([int(np.median(one.column("start")))]) for rank, one in recordings.items()}
    return {rank: int(clocks[rank].ahead(middle[rank])[0]) for rank in recordings}


def _collective_partners(lateness: Lateness, messages: Mapping[int, Sequence[Message]]) -> dict[Kernel, list[Kernel]]:
    """Return, for each kernel of a matched collective, the kernels of the same collective on the other ranks.

    Only ranks with messages count. `lateness` has the matched collectives, `messages` the sends and receives of each
    rank.
    """
    matched = lateness.matched
    ranks = [matched.ranks[i] for i in matched.rank_index.tolist()]
    members = list(zip(ranks, matched.position.tolist(), strict=True))
    bounds = [*matched.first_row.tolist(), len(members)]
    return {
        kernel: [other for other in members[low:high] if other != kernel and messages[other[0]]]
        for low, high in pairwise(bounds)
        for kernel in members[low:high]
    }
