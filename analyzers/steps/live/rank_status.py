"""How the ranks of a job stand right now, and the job with them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from analyzers.steps.live.heartbeat import DONE
from analyzers.steps.live.job_state import ENDED, RankNow, Stall
from analyzers.steps.live.rank_log import RankLog

STALLED_S, STALLED_STEPS = 3.0, 3.0
"""Who has not moved for so long, and for as many steps, may be stuck."""
RESTARTED_S = 30.0
"""A job whose ranks have all ended may be started again within this time."""
DUMPS_AFTER = 0.4
"""Part of the timeout after which the recorders ask for dumps."""


def rank_now(folder: Path, log: RankLog, growth: float | None, pace: float) -> RankNow:
    """Where a rank is, and how its memory stands."""
    beat, last = log.beat(folder), log.last
    held, limit = last.memory_bytes, last.limit_bytes
    quiet = max(0.0, time.time() - beat.time_ns / 1e9) if beat else 0.0
    return RankNow(
        rank=log.rank,
        host=str(log.header.get("host", "")),
        attempt=whole(log.header.get("attempt")),
        state=state(folder, log, beat.phase if beat else "", quiet > max(STALLED_S, STALLED_STEPS * pace)),
        step=beat.step if beat else last.step,
        phase=beat.phase if beat else "",
        quiet_s=quiet,
        memory_bytes=held,
        limit_bytes=limit,
        growth_bytes=growth,
        oom_step=None if limit is None or not growth else last.step + int((limit - held) / growth) + 1,
    )


def state(folder: Path, log: RankLog, phase: str, quiet: bool) -> str:
    """running, stalled, done, failed (an error ended it), gone (without a word), or unknown (on another machine)."""
    if phase == DONE:
        return "done"
    ending = read_json(folder / "dumps" / f"exit_{log.rank}.json")
    if whole(ending.get("time_ns")) > whole(log.header.get("started_ns")):
        return "failed"
    running = log.running()
    if running is False:
        return "gone"
    if quiet:
        return "stalled" if running else "unknown"
    return "running"


def ended(ranks: Sequence[RankNow]) -> list[RankNow]:
    """The ranks of a job that has ended: of those that said nothing none runs any more."""
    return [one if one.state in ("done", "failed") else replace(one, state="gone") for one in ranks]


def stall(ranks: Sequence[RankNow], manifest: Mapping[str, Any]) -> Stall | None:
    """The rank that has stood still for the longest, those that stand as it does, and what will come of that."""
    quiet = [one for one in ranks if one.state == "stalled"]
    if not quiet:
        return None
    longest = max(quiet, key=lambda one: one.quiet_s)
    limit = setting(manifest, "comm", "train_timeout_seconds" if longest.step > 1 else "init_timeout_seconds")
    return Stall(
        ranks=[one.rank for one in quiet],
        step=longest.step,
        phase=longest.phase,
        for_s=longest.quiet_s,
        dumps_in_s=None if limit is None else DUMPS_AFTER * limit - longest.quiet_s,
        ends_in_s=None if limit is None else limit - longest.quiet_s,
    )


def status(ranks: Sequence[RankNow], manifest: Mapping[str, Any], waiting: Stall | None) -> str:
    """How the job stands: by what its launcher wrote, else by its ranks."""
    if manifest.get("status") in ENDED:
        return str(manifest["status"])
    states = {one.state for one in ranks}
    if not states:
        return "waiting"
    if states == {"done"}:
        return "completed"
    if states <= {"done", "failed", "gone"} and min(one.quiet_s for one in ranks) > RESTARTED_S:
        return "failed"
    if states & {"failed", "gone"}:
        return "losing ranks"
    return "stalled" if waiting else "unknown" if states == {"unknown"} else "running"


def manifest_of(folder: Path, logs: Sequence[RankLog]) -> dict[str, Any]:
    """run.json; without its end where ranks were started after that, as a new run is not told of there at once."""
    manifest = read_json(folder / "run.json")
    started = max((whole(log.header.get("started_ns")) for log in logs), default=0)
    return manifest | {"status": "running"} if started > whole(manifest.get("ended_ns")) > 0 else manifest


def setting(manifest: Mapping[str, Any], section: str, key: str) -> int | None:
    """A whole number out of the configuration."""
    config = manifest.get("config")
    keys = config.get(section) if isinstance(config, dict) else None
    found = keys.get(key) if isinstance(keys, dict) else None
    return found if isinstance(found, int) else None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def whole(value: Any) -> int:
    """A number that is one; 0 for anything else."""
    return value if isinstance(value, int) else 0
