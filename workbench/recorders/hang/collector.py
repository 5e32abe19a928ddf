"""The process beside the ranks of a node that asks all of them for dumps when one stalls, fails or dies.

It runs outside the ranks, so that it can ask one that holds the GIL and outlives one that is killed, and it uses the
standard library only. `FlightRecorder.start` starts it; by hand, for a job that hangs right now:

    python -m workbench.recorders.hang.collector outputs --once
"""

import argparse
import contextlib
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.recorders.files import read_json, write_json
from workbench.recorders.hang.dump_round import look
from workbench.recorders.hang.rank_process import Worker, is_running

POLL_S = 0.2
STALLED_AFTER = 0.4  # of the timeout in force: both rounds end before the collectives give up
STALLED_AFTER_SLOW = 0.6  # once a stall has passed by itself: so that slow steps don't use up the sets
SECOND_ROUND_AFTER = 0.2  # of the timeout, but no longer than
SECOND_ROUND_AT_MOST_S = 10.0
SECOND_ROUND_ASKED_S = 3.0  # somebody waits for the answer
SECOND_ROUND_ENDING_S = 1.0  # ranks that fail or are told to end wait for both looks, before they go
QUIET_S, SETTLE_S = 0.6, 3.0  # a rank that has not moved for this long waits for somebody; how long to hope for that
MOST_SETS = 8
BY_HAND = "by hand"


@dataclass(frozen=True)
class Cause:
    """Why dumps are asked for."""

    reason: str
    detail: str
    stalled_s: float = 0.0
    timeout_s: float = 0.0

    @property
    def second_after_s(self) -> float:
        """Seconds until the second look, which tells slow from stuck."""
        if self.reason == "stalled":
            return min(SECOND_ROUND_AFTER * self.timeout_s, SECOND_ROUND_AT_MOST_S)
        return SECOND_ROUND_ASKED_S if self.lives_on else SECOND_ROUND_ENDING_S

    @property
    def lives_on(self) -> bool:
        """Whether the job may go on afterwards, so that nothing may be disturbed."""
        return self.reason == "stalled" or self.detail == BY_HAND


@dataclass(frozen=True)
class Plan:
    """What the collector is told at its start."""

    folder: Path
    ranks: Sequence[int]
    attempt: int
    init_timeout_s: float
    train_timeout_s: float


class Collector:
    """Watches the ranks of one node until all are gone or done."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dumps = plan.folder / "dumps"
        self.workers = [Worker(plan.folder, rank, plan.attempt) for rank in plan.ranks]
        self._mourned: set[int] = set()
        self._looked_ns = 0
        self._sets = 0
        self._patience = STALLED_AFTER

    def run(self) -> None:
        """Watch, collect, and clean up behind ranks that could not."""
        while True:
            if cause := self._cause():
                self.collect(cause)
            self._answer_requests()
            if self._over():
                break
            time.sleep(POLL_S)
        for worker in self.workers:
            if worker.side and worker.side["server"].startswith("/"):
                shutil.rmtree(Path(worker.side["server"]).parent, ignore_errors=True)

    def collect(self, cause: Cause) -> Path:
        """Take one set of dumps, of two looks. Returns its folder."""
        if not cause.lives_on:
            self._settle()
        home, asked_ns = claim_set(self.dumps), time.time_ns()
        rounds = [look(self.workers, home, 1, last=not cause.lives_on)]
        write_json(home / "collection.json", account(cause, asked_ns, rounds))
        time.sleep(max(0.0, cause.second_after_s - (time.time_ns() - asked_ns) / 1e9))
        rounds.append(look(self.workers, home / "round_2", 2))
        write_json(home / "collection.json", account(cause, asked_ns, rounds))
        self._looked_ns = asked_ns  # what has moved since the first look may be another stall
        self._sets += 1
        if cause.reason == "stalled" and self._all_moved():
            self._patience = STALLED_AFTER_SLOW
        return home

    def _over(self) -> bool:
        known = [worker for worker in self.workers if worker.side]
        return bool(known) and all(worker.gone or worker.finished for worker in known)

    def _cause(self) -> Cause | None:
        if died := self._died():
            return died
        if self._sets >= MOST_SETS:
            return None
        return self._requested() or self._stalled()

    def _died(self) -> Cause | None:
        """A process that went without a word: neither done, nor with an error of its own, nor after a look at all."""
        lost = [w for w in self.workers if w.rank not in self._mourned and w.gone and not w.finished]
        self._mourned.update(worker.rank for worker in lost)
        lost = [worker for worker in lost if not self._has_exit_file(worker)]
        if not lost or not self._moved():
            return None
        return Cause("died", f"process of rank {', '.join(str(worker.rank) for worker in lost)} is gone")

    def _requested(self) -> Cause | None:
        """What ranks ask for, unless nothing has moved since the last look."""
        if not self._moved():
            return None
        asked = sorted(
            (found for path in self._requests() if (found := read_json(path))), key=lambda r: int(r["time_ns"])
        )
        asked.sort(key=lambda request: request["reason"] != "failed")
        return Cause(asked[0]["reason"], asked[0]["detail"]) if asked else None

    def _stalled(self) -> Cause | None:
        now = time.time_ns()
        for worker in self.workers:
            beat = worker.beat
            if beat is None or worker.finished or worker.gone:
                continue
            timeout = self.plan.train_timeout_s if worker.begun else self.plan.init_timeout_s
            stalled = (now - beat.time_ns) / 1e9
            if stalled > self._patience * timeout and beat.time_ns > self._looked_ns:
                return Cause("stalled", f"rank {worker.rank} is in {beat.phase} of step {beat.step}", stalled, timeout)
        return None

    def _moved(self) -> bool:
        return self._looked_ns == 0 or any(self._beats_since())

    def _all_moved(self) -> bool:
        return all(self._beats_since())

    def _beats_since(self) -> list[bool]:
        """For each rank whether it has moved since the last look."""
        beats = [worker.beat for worker in self.workers]
        return [beat is not None and beat.time_ns > self._looked_ns for beat in beats]

    def _settle(self) -> None:
        """Let the other ranks reach the place where they wait for the lost one."""
        deadline = time.time_ns() + int(SETTLE_S * 1e9)
        while time.time_ns() < deadline:
            beats = [w.beat for w in self.workers if not w.gone and not w.finished]
            if all(beat is None or time.time_ns() - beat.time_ns > QUIET_S * 1e9 for beat in beats):
                return
            time.sleep(POLL_S)

    def _has_exit_file(self, worker: Worker) -> bool:
        found = read_json(self.dumps / f"exit_{worker.rank}.json")
        beat = worker.beat
        return bool(found and beat and found["time_ns"] > beat.time_ns)

    def _requests(self) -> list[Path]:
        ranks = set(self.plan.ranks)
        return [path for path in self.dumps.glob(".ask_*.json") if int(path.stem.rpartition("_")[2]) in ranks]

    def _answer_requests(self) -> None:
        """A request vanishes when it has been answered or needs no answer; whoever asked waits for that."""
        if not self._moved() or self._sets >= MOST_SETS:
            for path in self._requests():
                path.unlink(missing_ok=True)


def account(cause: Cause, asked_ns: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of `collection.json`."""
    return {
        "schema": "workbench.collection/1",
        "reason": cause.reason,
        "detail": cause.detail,
        "asked_ns": asked_ns,
        "stalled_s": round(cause.stalled_s, 3),
        "timeout_s": cause.timeout_s,
        "rounds": rounds,
    }


def claim_set(dumps: Path) -> Path:
    """The folder of the next set: dumps itself, then set_2, set_3 ... Of several collectors one gets each."""
    number, home = 1, dumps
    while True:
        home.mkdir(parents=True, exist_ok=True)
        try:
            (home / ".claimed").touch(exist_ok=False)
        except FileExistsError:
            number += 1
            home = dumps / f"set_{number}"
        else:
            return home


def local_ranks(folder: Path) -> tuple[list[int], int]:
    """The ranks of the newest attempt that live on this host, and that attempt, from the side files."""
    found = [side for path in (folder / "dumps").glob("groups_*.json") if (side := read_json(path))]
    attempt = max((int(side["attempt"]) for side in found), default=0)
    here = (s for s in found if s["attempt"] == attempt and s["host"] == socket.gethostname() and is_running(s["pid"]))
    return sorted(int(side["rank"]) for side in here), attempt


def once(folder: Path) -> Path | None:
    """Take one set of dumps now, whether a collector watches or not. None if no rank lives on this host."""
    ranks, attempt = local_ranks(folder)
    if not ranks:
        return None
    return Collector(Plan(folder, ranks, attempt, 0.0, 0.0)).collect(Cause("asked", BY_HAND))


def main() -> None:
    """Parse the plan and watch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--once", action="store_true", help="take one set now and print its folder")
    parser.add_argument("--first-rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--init-timeout", type=float, default=300.0)
    parser.add_argument("--train-timeout", type=float, default=100.0)
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if asked.once:
            home = once(asked.folder)
            if home is None:
                sys.exit(f"{asked.folder}: no rank of this run lives on {socket.gethostname()}")
            print(home)
            return
        ranks = range(asked.first_rank, asked.first_rank + asked.ranks)
        Collector(Plan(asked.folder, ranks, asked.attempt, asked.init_timeout, asked.train_timeout)).run()


if __name__ == "__main__":
    main()
