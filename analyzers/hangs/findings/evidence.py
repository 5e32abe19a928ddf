"""Collect the evidence for a finding: stack, process, timing and log of the culprit, and where its victims wait."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median

import msgspec

from analyzers.files import decoded_json, open_regular
from analyzers.hangs.classify.cause import Cause, HangContext, MemoryGrowth
from analyzers.hangs.findings.wording import format_call, is_message, part_of_step
from analyzers.hangs.model import HangClass, Job, RankState, Reason, is_library, user_frame
from analyzers.hangs.reading.exits import read_last_lines
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.hangs.reading.side_formats import AnswerStatus
from analyzers.hangs.reading.thread_stacks import Child, read_children
from analyzers.report import Evidence
from analyzers.words import agree, duration, numbered, process_group, rank_names

_TAIL_BYTES = 1 << 16
"""The number of bytes that are read at the end of a step log: about a hundred lines."""


def _measure_phase(side: SideFiles, rank: int) -> float | None:
    """Return for how many seconds a rank had been in its phase when it last answered a request; None if unknown.

    A phase is a part of a step, such as backward; a request is one for a dump.
    """
    answers = (answer for number in reversed(side.rounds) if (answer := number.ranks.get(rank)))
    answer = next((a for a in answers if a.status == AnswerStatus.OK), None)
    if answer is None or answer.heartbeat is None or not answer.asked_ns or not answer.heartbeat.time_ns:
        return None
    return max(0.0, (answer.asked_ns - answer.heartbeat.time_ns) / 1e9)


def _read_step_times(log: Path | None) -> list[float]:
    """Return the durations, in seconds, of the last steps in a rank's step log; empty if there is no log.

    The first step that is read is left out: it may be the first step of the process, which includes the warm-up.
    """
    return [nanoseconds / 1e9 for nanoseconds in _read_last(log, "dur_ns")][1:]


def measure_growth(log: Path | None) -> MemoryGrowth | None:
    """Return how much the memory of a rank grew over the last steps in its step log; None if it did not go on growing.

    The memory of a step is the most that was in use. A rank that only warms up grows in its first steps alone.
    """
    sizes = _read_last(log, "memory_bytes")
    if len(sizes) < _FEWEST_STEPS:
        return None
    third = len(sizes) // 3
    first, middle, last = (median(sizes[n * third : (n + 1) * third]) for n in range(3))
    if last - first < max(_LEAST_GROWTH_BYTES, first * _LEAST_GROWTH) or last - middle < (last - first) / 4:
        return None
    return MemoryGrowth(sizes[0], sizes[-1], len(sizes))


def _read_last(log: Path | None, key: str) -> list[int]:
    """Return a number of the last steps in a rank's step log, oldest first; empty if there is no log."""
    if log is None:
        return []
    try:
        with open_regular(log) as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    return [number for line in lines if (number := _number_in(line, key)) is not None]


def _number_in(line: bytes, key: str) -> int | None:
    """Return a number of the step that a line of a step log describes; None for any other line."""
    try:
        content = decoded_json(line)
    except (msgspec.DecodeError, RecursionError):
        return None
    number = content.get(key) if isinstance(content, dict) else None
    return number if isinstance(number, int) else None


_FEWEST_STEPS, _LEAST_GROWTH, _LEAST_GROWTH_BYTES = 6, 0.2, 64 << 20
_MOST_LOCATIONS, _MOST_CALLERS, _MOST_PROCESSES, _MOST_CHILDREN, _MOST_FAULTS = 4, 5, 5, 2, 5
_RECENT_STEPS = 3
NAMES = {"stdout.log": "output"}
_SLOWER = 1.5
"""Recent steps count as slow if they take at least this many times as long as earlier ones."""


def evidence(context: HangContext, cause: Cause) -> list[Evidence]:
    """Return the facts behind a cause that are not yet in the title and the explanation of its finding."""
    side = context.side
    times = [] if cause.kind is HangClass.DEAD else timing(side, cause)
    log = _log_end(side, cause) if cause.kind in (HangClass.DEAD, HangClass.HOST_STUCK) else []
    own = (
        stack(side, cause),
        _last_issued(context.job, cause),
        processes(side, cause),
        _child_processes(side, cause),
        times,
        log,
    )
    facts = (_recorded_operations(cause), *own, device_faults(side, cause), ras(side, cause))
    return [*chain.from_iterable((*facts, _victims_locations(context, cause.victims)))]


def device_faults(side: SideFiles, cause: Cause) -> list[Evidence]:
    """Return evidence of errors that GPUs on the hosts of the culprits reported while the job ran."""
    hosts = dict.fromkeys(side.groups[rank].host for rank in cause.ranks if rank in side.groups)
    faults = [(host, fault) for host in hosts for fault in side.health.faults.get(host, ())]
    return [
        Evidence(text=f"host {host} reported {fault.text}", source=str(fault.path))
        for host, fault in faults[:_MOST_FAULTS]
    ]


def ras(side: SideFiles, cause: Cause) -> list[Evidence]:
    """Return evidence from NCCL's RAS (its monitoring service) that names a culprit's process, if it left no dump."""
    is_named = cause.reason in (Reason.RAS_DEAD, Reason.RAS_SILENT)
    state = side.health.ras_state(cause.ranks[0])
    return [
        Evidence(text=f"NCCL's RAS lists the process of rank {cause.ranks[0]} under {state}", source=str(path))
        for path in side.health.ras_files[:1]
        if is_named
    ]


def _recorded_operations(cause: Cause) -> list[Evidence]:
    """Return evidence of the operations that members issued with different shapes or dtypes.

    The list is empty unless the cause is a mismatch.
    """
    # Of a tie all ranks are culprits, and each side has its own operation.
    both = cause.sides if cause.reason is Reason.TIE else (cause.issued, cause.expected)
    sides = both if cause.kind is HangClass.MISMATCH else ()
    return [
        Evidence(
            text=f"Flight Recorder: {rank_names(side.ranks)} issued {format_call(side)}"
            f"{f' with an output of {side.output}' if cause.reason is Reason.SIZE_RULE and side.output else ''}"
            f" as {numbered('collective', side.seq)} of {process_group(side.group)}",
            line=f"{side.line.filename}:{side.line.line}" if side.line else "",
        )
        for side in sides
        if side and side.ranks and side.shape and not side.p2p
    ]


def stack(side: SideFiles, cause: Cause) -> list[Evidence]:
    """Return evidence with the user's line that a culprit is at, and the functions that called it."""
    rank, own = cause.ranks[0], [f for f in cause.culprit.frames if not is_library(f)]
    if not own:
        return []
    line, *callers = own
    called = f", called by {', '.join(f.name for f in callers[:_MOST_CALLERS])}" if callers else ""
    verb = agree(cause.ranks, *(("was", "were") if cause.kind is HangClass.DEAD else ("is", "are")))
    # A name such as <module> or <lambda> is no function's.
    name = line.name if line.name.startswith("<") else f"{line.name}()"
    text = f"{rank_names(cause.ranks)} {verb} in {name}{called}"
    return [Evidence(text=text, line=f"{line.filename}:{line.line}", source=str(side.stack_files.get(rank, "")))]


def _last_issued(job: Job, cause: Cause) -> list[Evidence]:
    """Return evidence that stuck ranks did not join the operation: the last collective that each issued in the group.

    The group is the process group in which the victims wait. The list is empty if the victims wait for a message, or if
    the dumps do not show this.
    """
    seq, name = cause.culprit.seq, cause.culprit.group_desc
    number = next((index for index, group in enumerate(job.groups) if group.name == cause.culprit.group), None)
    if cause.kind is not HangClass.HOST_STUCK or seq is None or number is None or is_message(cause.culprit):
        return []
    by_text: dict[str, list[int]] = {}
    for rank in cause.ranks:
        state = job.ranks.get(rank)
        if state and state.enqueued(number) < seq:
            by_text.setdefault(_last_collective(job, state, number), []).append(rank)
    return [
        Evidence(text=f"Flight Recorder of {rank_names(ranks)}: {text}; #{seq} is not in it")
        for text, ranks in list(by_text.items())[:_MOST_LOCATIONS]
        if name
    ]


def _last_collective(job: Job, state: RankState, group: int) -> str:
    """Return a phrase on the last collective that a rank issued in a process group, and whether it completed."""
    label, seq = job.groups[group].label, state.enqueued(group)
    if seq < 0:
        return f"no collective of {process_group(label)} was issued"
    op = state.collective(group, seq)
    name = job.operation(op) if op else "collective"
    ended = "completed" if state.completed(group) >= seq else "not completed"
    return f"the last collective that it issued in {process_group(label)} is {numbered(name, seq)} ({ended})"


def processes(side: SideFiles, cause: Cause) -> list[Evidence]:
    """Return evidence that names the culprits' processes and hosts, so that a user can log in there."""
    files = [(r, side.groups[r]) for r in cause.ranks[:_MOST_PROCESSES] if r in side.groups and side.groups[r].host]
    verb = "was" if cause.kind is HangClass.DEAD else "is"
    text = ", ".join(f"rank {rank} {verb} process {file.pid} on host {file.host}" for rank, file in files)
    return [Evidence(text=text)] if text else []


def _child_processes(side: SideFiles, cause: Cause) -> list[Evidence]:
    """Return evidence of what the child processes of a stuck rank do: the rank may wait for a data-loader worker."""
    path = side.child_files.get(cause.ranks[0])
    if path is None or cause.kind not in (HangClass.HOST_STUCK, HangClass.SLOW):
        return []
    # One in the user's own code says more than those that wait for work.
    children = sorted(read_children(path), key=lambda child: all(map(is_library, child.stack)))
    return [_child_process(child, path, cause.ranks[0]) for child in children[:_MOST_CHILDREN]]


def _child_process(child: Child, path: Path, rank: int) -> Evidence:
    """Return evidence that names the function that a child process is in, or its command if it left no stack."""
    line = user_frame(child.stack)
    does = f"is in {line.name}" if line else f"runs {child.command}"
    at = f"{line.filename}:{line.line}" if line else ""
    return Evidence(text=f"child process {child.pid} of rank {rank} {does}", line=at, source=str(path))


def timing(side: SideFiles, cause: Cause) -> list[Evidence]:
    """Return evidence of when the first culprit's heartbeats show progress, and how long its earlier steps took.

    The list is empty if neither is known.
    """
    rank = cause.ranks[0]
    log = side.step_logs.get(rank)
    reported, steps = progress(side, cause), _read_step_times(log)
    parts = [reported] if reported else []
    parts += [earlier_steps(steps)] if steps else []
    about = None if reported else rank
    return [Evidence(text="; ".join(parts), rank=about, source=str(log or ""))] if parts else []


def progress(side: SideFiles, cause: Cause) -> str:
    """Return a clause on when the first culprit reported progress before its dump, or after it; empty if unknown."""
    rank = cause.ranks[0]
    stay, beat, asked_ns = _measure_phase(side, rank), side.last_beat(rank), side.asked_ns(rank)
    where = part_of_step(beat.phase, beat.step) if beat else ""
    if cause.reason is Reason.MOVED_ON and beat and asked_ns and beat.time_ns > asked_ns:
        before = f" had reported no progress for {duration(stay)} when its dump was requested, and" if stay else ""
        after = duration((beat.time_ns - asked_ns) / 1e9)
        return f"rank {rank}{before} reported progress {after} after the request{where}"
    return f"rank {rank} last reported progress {duration(stay)} before it wrote its dump{where}" if stay else ""


def earlier_steps(steps: list[float]) -> str:
    """Return a phrase on how long the steps before the hang took, and whether the last of them were slow.

    `steps` are their durations in seconds.
    """
    recent, before = median(steps[-_RECENT_STEPS:]), median(steps[:-_RECENT_STEPS] or steps)
    if recent > _SLOWER * before:
        took = f"each of its last {_RECENT_STEPS} steps took {duration(recent)}"
        return f"{took}, earlier ones {duration(before)}"
    return f"its earlier steps took {duration(median(steps))} each"


def _log_end(side: SideFiles, cause: Cause) -> list[Evidence]:
    """Return evidence with the last lines in the logs of a rank that died or is stuck: its output and its errors."""
    errors: Path | None = side.log_files.get(cause.ranks[0])
    logs = [errors.with_name("stdout.log"), errors] if errors else []
    ends = [(log, NAMES.get(log.name, "log"), lines) for log in logs if (lines := read_last_lines(log))]
    rank = cause.ranks[0]
    return [
        Evidence(text=f"the {name} of rank {rank} ends with: {lines}", source=str(log)) for log, name, lines in ends
    ]


def _victims_locations(context: HangContext, victims: Sequence[int]) -> list[Evidence]:
    """Return an `Evidence` for each line at which victims wait, most ranks first; at most `_MOST_LOCATIONS`."""
    together: dict[tuple[str, str], list[int]] = {}
    for rank in victims:
        if location := _waits_at(context, rank):
            together.setdefault(location, []).append(rank)
    # Thousands of victims wait in a handful of places; the largest few show the pattern.
    largest = sorted(together.items(), key=lambda item: -len(item[1]))[:_MOST_LOCATIONS]
    return [
        Evidence(text=f"{rank_names(ranks)} {agree(ranks, 'waits', 'wait')} in {name}", line=line)
        for (name, line), ranks in largest
    ]


def _waits_at(context: HangContext, rank: int) -> tuple[str, str] | None:
    """Return (operation, user's line) of a rank's current operation, as texts; None if the rank is in none."""
    job, state = context.job, context.job.ranks.get(rank)
    if state is None or state.current is None:
        return None
    current = state.current
    # JSON dumps have no stacks; there the main thread's own one shows the line.
    line = job.line(current) or user_frame(context.side.main_stack(rank))
    name = numbered(job.operation(current), None if current.p2p else current.seq)
    return f"{name} of {process_group(job.groups[current.group].label)}", f"{line.filename}:{line.line}" if line else ""
