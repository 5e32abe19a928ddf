"""Derive the present status of each rank of a job, and from these the status of the job."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from analyzers import files
from analyzers.steps.live.heartbeat import DONE
from analyzers.steps.live.job_state import ENDED, JobStatus, RankState, RankStatus, StalledRanks
from analyzers.steps.live.rank_log import RankLog

_STALLED_S, _STALLED_STEPS = 3.0, 3.0
"""A rank that has not moved for this many seconds, and for the duration of this many steps, may be stuck."""
_RESTART_S = 30.0
"""The seconds after the end of all ranks within which a job may restart before it counts as failed."""
_DUMPS_AFTER = 0.4
"""The share of a collective's timeout after which this project's recorders write dumps.

At the end of the timeout NCCL aborts, and the flags in a dump are wrong.
"""


def rank_state(folder: Path, log: RankLog, growth: float | None, step_s: float) -> RankState:
    """Return the state of a rank: its current phase, step and memory.

    `folder` is the folder of the job, `log` has the rank's last steps. `growth` is its memory growth in bytes per
    step, None without one; `step_s` is the present duration of a step (s).
    """
    beat, last = log.heartbeat(folder), log.last
    memory, limit = last.memory_bytes, last.limit_bytes
    quiet_s = max(0.0, time.time() - beat.time_ns / 1e9) if beat else 0.0
    # Long steps (large models) are quiet for seconds without being stuck.
    is_quiet = quiet_s > max(_STALLED_S, _STALLED_STEPS * step_s)
    return RankState(
        rank=log.rank,
        host=str(log.header.get("host", "")),
        attempt=int_or_zero(log.header.get("attempt")),
        state=_rank_status(folder, log, beat.phase if beat else "", is_quiet=is_quiet),
        step=beat.step if beat else last.step,
        phase=beat.phase if beat else "",
        quiet_s=quiet_s,
        memory_bytes=memory,
        limit_bytes=limit,
        growth_bytes=growth,
        oom_step=None if limit is None or not growth else last.step + int((limit - memory) / growth) + 1,
    )


def _rank_status(folder: Path, log: RankLog, phase: str, *, is_quiet: bool) -> RankStatus:
    """Return the status of a rank of the job in `folder`.

    The status is DONE if `phase`, the rank's last phase, is the final one, and FAILED if the rank wrote an error file
    since its last start. Else it depends on whether the process that wrote `log` still runs. `is_quiet` says that the
    rank has not changed its phase for unusually long.
    """
    if phase == DONE:
        return RankStatus.DONE
    error = read_json(folder / "dumps" / f"exit_{log.rank}.json")
    # The error of an earlier attempt says nothing about this one.
    if int_or_zero(error.get("time_ns")) > int_or_zero(log.header.get("started_ns")):
        return RankStatus.FAILED
    running = log.running()
    if running is False:
        return RankStatus.GONE
    if is_quiet:
        return RankStatus.STALLED if running else RankStatus.UNKNOWN
    return RankStatus.RUNNING


def ended_ranks(ranks: Sequence[RankState]) -> list[RankState]:
    """Return the ranks of a job that has ended; ranks that neither completed nor reported an error become GONE."""
    spoke = (RankStatus.DONE, RankStatus.FAILED)
    return [rank if rank.state in spoke else replace(rank, state=RankStatus.GONE) for rank in ranks]


def stalled_ranks(ranks: Sequence[RankState], manifest: Mapping[str, object]) -> StalledRanks | None:
    """Return a `StalledRanks` for all ranks with the status STALLED; None if there are none.

    It has the step and phase of the rank that has been stalled longest, and the time until its collective times out.
    `manifest` is the content of run.json.
    """
    stalled = [rank for rank in ranks if rank.state is RankStatus.STALLED]
    if not stalled:
        return None
    # The others wait for the rank that stopped first.
    longest = max(stalled, key=lambda rank: rank.quiet_s)
    # torchtitan sets the shorter timeout after the first step.
    limit = int_setting(manifest, "comm", "train_timeout_seconds" if longest.step > 1 else "init_timeout_seconds")
    return StalledRanks(
        ranks=[rank.rank for rank in stalled],
        step=longest.step,
        phase=longest.phase,
        stalled_s=longest.quiet_s,
        dumps_in_s=None if limit is None else _DUMPS_AFTER * limit - longest.quiet_s,
        ends_in_s=None if limit is None else limit - longest.quiet_s,
    )


def job_status(ranks: Sequence[RankState], manifest: Mapping[str, object], stalled: StalledRanks | None) -> JobStatus:
    """Return the status of a job: the end recorded by its launcher in run.json, or else one derived from its ranks.

    `manifest` is the content of run.json; `stalled` describes the stalled ranks, None if no rank is stalled.
    """
    if manifest.get("status") in ENDED:
        return JobStatus(str(manifest["status"]))
    states = {rank.state for rank in ranks}
    if not states:
        return JobStatus.WAITING
    if states == {RankStatus.DONE}:
        return JobStatus.COMPLETED
    lost = {RankStatus.FAILED, RankStatus.GONE}
    if states <= {RankStatus.DONE, *lost} and min(rank.quiet_s for rank in ranks) > _RESTART_S:
        return JobStatus.FAILED
    if states & lost:
        return JobStatus.LOSING_RANKS
    moving = JobStatus.UNKNOWN if states == {RankStatus.UNKNOWN} else JobStatus.RUNNING
    return JobStatus.STALLED if stalled else moving


def manifest_of(folder: Path, logs: Sequence[RankLog]) -> dict[str, object]:
    """Return the content of run.json; empty if there is none.

    If ranks started after the end of the run that the file records, a new run has begun whose launcher has not yet
    rewritten the file; `status` is then set to `running`.
    """
    manifest = read_json(folder / "run.json")
    started = max((int_or_zero(log.header.get("started_ns")) for log in logs), default=0)
    return manifest | {"status": "running"} if started > int_or_zero(manifest.get("ended_ns")) > 0 else manifest


def int_setting(manifest: Mapping[str, object], section: str, key: str) -> int | None:
    """Return the integer `config[section][key]` of run.json (`manifest`); None if there is no such integer."""
    config = manifest.get("config")
    keys = config.get(section) if isinstance(config, dict) else None
    value = keys.get(key) if isinstance(keys, dict) else None
    return value if isinstance(value, int) else None


def texts(manifest: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the texts in the list `key` of run.json (`manifest`); empty if there is no such list."""
    values = manifest.get(key)
    return tuple(str(value) for value in values if isinstance(value, str)) if isinstance(values, list) else ()


def read_json(path: Path) -> dict[str, object]:
    """Return the object in a JSON file as a dict; empty if there is no such file or it holds something else."""
    try:
        content = files.read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def int_or_zero(value: object) -> int:
    """Return the value if it is an integer, else 0."""
    return value if isinstance(value, int) else 0
