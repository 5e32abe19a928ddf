"""The collector: a process on each node that takes dumps of the node's ranks when a rank stalls, fails or dies.

It is separate from the ranks, so that it can read a rank that holds the GIL, and survives a rank that is killed. It
uses the standard library only. `FlightRecorder.start` starts it; by hand, for a job that hangs right now:

    python -m workbench.recorders.hang.collector outputs --once
"""

import argparse
import contextlib
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.recorders.files import read_json, write_json
from workbench.recorders.hang.dump_round import take_round
from workbench.recorders.hang.enclosing_blocks import enclosing_blocks
from workbench.recorders.hang.node_health import save_in_background
from workbench.recorders.hang.rank_process import RankProcess, is_running, read_side_file
from workbench.recorders.own_files import note, remove_file

POLL_S = 0.2
_STALLED_AFTER = 0.4  # of the timeout in force: both rounds end before the collectives give up
_STALLED_AFTER_SLOW = 0.6  # after a stall that ended by itself, so that slow steps do not use up the sets
_STALLED_AFTER_START = 0.8  # while a rank has not registered: it may only start more slowly than the others
_SECOND_ROUND_AFTER = 0.2  # of the timeout, but no longer than
_SECOND_ROUND_AT_MOST_S = 10.0
_SECOND_ROUND_BY_HAND_S = 3.0  # a person waits for the answer
_SECOND_ROUND_ENDING_S = 1.0  # ranks that fail, or got SIGTERM, wait for both rounds before they end
_QUIET_S = 0.6  # a rank whose heartbeat stood for this long waits for another rank
_SETTLE_S = 3.0  # how long the other ranks get to reach that state
_MAX_SETS = 8  # each set interrupts the ranks: a job that stalls again and again must still train
_HEALTH_S = 20.0  # how long the end of the collector waits for what the node says
_BY_HAND = "by hand"
_SOCKET_FOLDER, _SOCKET_NAME = "wb_", "rank"
"""How `FlightRecorder` names the Unix socket of a rank, and how its folder's name begins."""


@dataclass(frozen=True)
class Cause:
    """The reason for taking dumps.

    `reason` is "stalled" (no progress), "died" (the process has disappeared), "failed" (an exception) or "asked" (after
    SIGTERM or by hand); `detail` is a sentence about it. For a stalled rank, `stalled_s` is the number of seconds since
    its last heartbeat, and `timeout_s` the timeout of its collectives. `elsewhere` says that the rank that stalled,
    died or failed is on another node.
    """

    reason: str
    detail: str
    stalled_s: float = 0.0
    timeout_s: float = 0.0
    elsewhere: bool = False

    @property
    def second_round_after_s(self) -> float:
        """Seconds between the two rounds of dumps: a slow rank advances between them, a stuck rank does not."""
        if self.reason == "stalled":
            return min(_SECOND_ROUND_AFTER * self.timeout_s, _SECOND_ROUND_AT_MOST_S)
        return _SECOND_ROUND_BY_HAND_S if self.job_continues else _SECOND_ROUND_ENDING_S

    @property
    def job_continues(self) -> bool:
        """Whether the job may continue after the dumps; then taking dumps must not disturb the job."""
        return self.reason == "stalled" or self.detail == _BY_HAND


@dataclass(frozen=True)
class Plan:
    """The arguments of a collector: run folder, global ranks of this node, number of restarts so far, and timeouts.

    `started_by` is the id of the process that started the collector, 0 if that is no rank. `init_timeout_s` is the
    timeout of collectives, in seconds, until a rank has finished its first step; afterwards `train_timeout_s` applies.
    """

    folder: Path
    ranks: Sequence[int]
    attempt: int
    init_timeout_s: float
    train_timeout_s: float
    started_by: int = 0


class Collector:
    """Watches the ranks of one node until all of them have ended; takes dumps when a rank stalls, fails or dies."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dumps = plan.folder / "dumps"
        is_of_the_job = plan.started_by != 0
        self.workers = [RankProcess(plan.folder, rank, plan.attempt, trusted=is_of_the_job) for rank in plan.ranks]
        self._reported_dead: set[int] = set()
        self._last_dump_ns = 0
        self._sets = 0
        self._stall_share = _STALLED_AFTER
        self._health: threading.Thread | None = None

    def run(self) -> None:
        """Watch the ranks and take dumps, until all ranks have ended or the folder of the dumps is deleted.

        At the end, delete the folders with the ranks' Unix sockets, because a killed rank cannot delete its own.
        """
        while True:
            if cause := self._cause():
                self._collect_if_possible(cause)
            self._answer_requests()
            if self._job_ended() or _is_deleted(self.dumps):
                break
            time.sleep(POLL_S)
        if self._health:
            self._health.join(_HEALTH_S)
        for worker in self.workers:
            if worker.side_file:
                remove_socket(Path(worker.side_file["server"]))

    def _collect_if_possible(self, cause: Cause) -> None:
        """Take dumps; where they cannot be written, write why to the log of this process, and let the ranks go on."""
        try:
            self.collect(cause)
        except OSError as error:
            # A rank that waits for its request would wait for nothing.
            for path in self._requests():
                remove_file(path)
            self._last_dump_ns, self._sets = time.time_ns(), self._sets + 1
            note(f"no dumps: {error}")

    def collect(self, cause: Cause) -> Path:
        """Take two rounds of dumps of all ranks on this node into a new folder, and return that folder.

        `cause` is written to the folder too. It also decides how much time passes between the two rounds.
        """
        if not cause.job_continues:
            self._settle()
        set_folder, asked_ns = _claim_set(self.dumps), time.time_ns()
        # Where files are sent to another node, their sender reads it, so that other nodes' ranks are dumped as well.
        claim = {"reason": cause.reason, "detail": cause.detail, "asked_ns": asked_ns, "elsewhere": cause.elsewhere}
        write_json(set_folder / ".claimed", claim)
        rounds = [take_round(self.workers, set_folder, 1, send_signals=not cause.job_continues)]
        self._write(set_folder, _collection_document(cause, asked_ns, rounds, self.plan.attempt))
        self._health = save_in_background(self.plan.folder, set_folder, self._started_s())
        time.sleep(max(0.0, cause.second_round_after_s - (time.time_ns() - asked_ns) / 1e9))
        rounds.append(take_round(self.workers, set_folder / "round_2", 2))
        self._write(set_folder, _collection_document(cause, asked_ns, rounds, self.plan.attempt))
        self._last_dump_ns = asked_ns  # what has moved since the first round may be another stall
        self._sets += 1
        if cause.reason == "stalled" and self._all_moved():
            self._stall_share = _STALLED_AFTER_SLOW
        return set_folder

    def _write(self, set_folder: Path, document: dict[str, object]) -> None:
        """Write `collection.json` of a set of dumps, with the blocks of source code that its ranks are in."""
        try:
            blocks = enclosing_blocks(set_folder, self.dumps)
        except (OSError, TypeError, ValueError) as error:
            note(f"no source code: {error}")
            blocks = {}
        write_json(set_folder / "collection.json", document | {"blocks": blocks})

    def _started_s(self) -> float:
        """Return the Unix time at which the first rank of this node registered; the current time if none has."""
        written = [worker.side_file["written_ns"] for worker in self.workers if worker.side_file]
        return min(written, default=time.time_ns()) / 1e9

    def _job_ended(self) -> bool:
        known = [worker for worker in self.workers if worker.side_file]
        if not known:
            # The rank that started this process ended before it had written its side file.
            return not is_running(self.plan.started_by)
        return all(worker.has_exited or worker.ended_cleanly for worker in known)

    def _cause(self) -> Cause | None:
        if died := self._dead_rank():
            return died
        if self._sets >= _MAX_SETS:
            return None
        return self._request() or self._stalled_rank()

    def _dead_rank(self) -> Cause | None:
        """Return the `Cause` "died" if the process of a rank has newly disappeared, else None.

        A process has disappeared if it ended without recording a clean end or an error. If no rank's heartbeat has
        advanced since the last dumps, return None, because new dumps would show nothing new.
        """
        lost = [w for w in self.workers if w.rank not in self._reported_dead and w.has_exited and not w.ended_cleanly]
        self._reported_dead.update(worker.rank for worker in lost)
        lost = [worker for worker in lost if not self._has_exit_file(worker)]
        if not lost or not self._any_moved():
            return None
        return Cause("died", f"process of rank {', '.join(str(worker.rank) for worker in lost)} is gone")

    def _request(self) -> Cause | None:
        """Return the `Cause` from the request file that a rank has written to get dumps; None if there is no request.

        If several ranks request dumps, a rank that failed takes precedence, and then the earliest request. Return None
        too if no rank's heartbeat has advanced since the last dumps.
        """
        if not self._any_moved():
            return None
        asked = sorted(
            (request for path in self._requests() if (request := read_json(path))), key=lambda r: int(r["time_ns"])
        )
        # An error says more than a rank that was told to end because of it.
        asked.sort(key=lambda request: request["reason"] != "failed")
        if not asked:
            return None
        first = asked[0]
        timeout_s = self.plan.train_timeout_s if first["reason"] == "stalled" else 0.0
        return Cause(first["reason"], first["detail"], timeout_s=timeout_s, elsewhere=first.get("elsewhere", False))

    def _stalled_rank(self) -> Cause | None:
        now, share = time.time_ns(), self._stall_share
        if any(worker.side_file is None for worker in self.workers):
            share = max(share, _STALLED_AFTER_START)
        for worker in self.workers:
            beat = worker.heartbeat
            if beat is None or worker.ended_cleanly or worker.has_exited:
                continue
            timeout = self.plan.train_timeout_s if worker.has_finished_a_step else self.plan.init_timeout_s
            stalled = (now - beat.time_ns) / 1e9
            if stalled > share * timeout and beat.time_ns > self._last_dump_ns:
                return Cause("stalled", f"rank {worker.rank} is in {beat.phase} of step {beat.step}", stalled, timeout)
        return None

    def _any_moved(self) -> bool:
        return self._last_dump_ns == 0 or any(self._beats_since())

    def _all_moved(self) -> bool:
        return all(self._beats_since())

    def _beats_since(self) -> list[bool]:
        """Return, for each rank of this node, whether its heartbeat has advanced since the last dumps."""
        beats = [worker.heartbeat for worker in self.workers]
        return [beat is not None and beat.time_ns > self._last_dump_ns for beat in beats]

    def _settle(self) -> None:
        """Wait until the heartbeats of all running ranks have stopped, but at most SETTLE_S seconds.

        Each rank has then reached the collective in which it waits for the rank that failed or died. So the dumps show
        this collective.
        """
        deadline = time.time_ns() + int(_SETTLE_S * 1e9)
        while time.time_ns() < deadline:
            beats = [w.heartbeat for w in self.workers if not w.has_exited and not w.ended_cleanly]
            if all(beat is None or time.time_ns() - beat.time_ns > _QUIET_S * 1e9 for beat in beats):
                return
            time.sleep(POLL_S)

    def _has_exit_file(self, worker: RankProcess) -> bool:
        found = read_json(self.dumps / f"exit_{worker.rank}.json")
        beat = worker.heartbeat
        # An exit file from an earlier attempt is older than the heartbeat of this process.
        return bool(found and beat and found["time_ns"] > beat.time_ns)

    def _requests(self) -> list[Path]:
        ranks = set(self.plan.ranks)
        return [path for rank in ranks if (path := self.dumps / f".ask_{rank}.json").exists()]

    def _answer_requests(self) -> None:
        """Delete the ranks' request files if all requested dumps are taken, or if no more dumps will be taken.

        A rank that has requested dumps waits until its request file is deleted.
        """
        if not self._any_moved() or self._sets >= _MAX_SETS:
            for path in self._requests():
                remove_file(path)


def remove_socket(path: Path) -> None:
    """Remove the Unix socket of a rank and its folder, if these are what `FlightRecorder` makes, and nothing else."""
    if path.name != _SOCKET_NAME or not path.parent.name.startswith(_SOCKET_FOLDER):
        return
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.lstat().st_mode) and path.lstat().st_uid == os.geteuid():
            path.unlink()
            path.parent.rmdir()


def _is_deleted(folder: Path) -> bool:
    """Return whether a folder no longer exists; False if this is unknown because a shared disk does not answer."""
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _collection_document(
    cause: Cause, asked_ns: int, rounds: list[dict[str, object]], attempt: int
) -> dict[str, object]:
    """Return the content of `collection.json`, which describes a set of dumps (one or two rounds).

    `asked_ns` is the Unix time of the first request to a rank. `rounds` has the result of `take_round` for each round.
    `attempt` is the number of restarts of the job before these dumps.
    """
    return {
        "schema": "workbench.collection/1",
        "reason": cause.reason,
        "detail": cause.detail,
        "asked_ns": asked_ns,
        "attempt": attempt,
        "stalled_s": round(cause.stalled_s, 3),
        "timeout_s": cause.timeout_s,
        "rounds": rounds,
    }


def _claim_set(dumps: Path) -> Path:
    """Create and return the folder for the next set of dumps: the folder `dumps` itself, then dumps/set_2, set_3, ...

    Collectors that run at the same time get different folders.
    """
    number, set_folder = 1, dumps
    while True:
        set_folder.mkdir(parents=True, exist_ok=True)
        try:
            (set_folder / ".claimed").touch(0o600, exist_ok=False)
        except FileExistsError:
            number += 1
            set_folder = dumps / f"set_{number}"
        else:
            return set_folder


def _ranks_on_this_host(folder: Path) -> tuple[list[int], int]:
    """Return (ranks of the run whose process provably runs on this host, ascending; number of restarts).

    Both are read from the files `groups_R.json`, which each rank R has written.
    """
    names = (path.stem.partition("_")[2] for path in (folder / "dumps").glob("groups_*.json"))
    found = [side for name in names if name.isdecimal() and (side := read_side_file(folder, int(name)))]
    attempt = max((side["attempt"] for side in found), default=0)
    here = [side["rank"] for side in found if side["host"] == socket.gethostname()]
    return sorted(rank for rank in here if RankProcess(folder, rank, attempt).process is not None), attempt


def once(folder: Path) -> Path | None:
    """Take one set of dumps of the ranks on this host now, whether or not another collector is running.

    Return the folder of the dumps; None if no rank of the run is on this host.
    """
    ranks, attempt = _ranks_on_this_host(folder)
    if not ranks:
        return None
    return Collector(Plan(folder, ranks, attempt, 0.0, 0.0)).collect(Cause("asked", _BY_HAND))


def main() -> None:
    """Run a collector with the arguments on the command line, until all its ranks have ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--once", action="store_true", help="take one set now and print its folder")
    parser.add_argument("--first-rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--attempt", type=int, default=0)
    parser.add_argument("--init-timeout", type=float, default=300.0)
    parser.add_argument("--train-timeout", type=float, default=100.0)
    parser.add_argument("--started-by", type=int, default=os.getppid())
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if asked.once:
            set_folder = once(asked.folder)
            if set_folder is None:
                sys.exit(f"{asked.folder}: no rank of this run lives on {socket.gethostname()}")
            print(set_folder)
            return
        ranks = range(asked.first_rank, asked.first_rank + asked.ranks)
        timeouts = (asked.init_timeout, asked.train_timeout)
        Collector(Plan(asked.folder, ranks, asked.attempt, *timeouts, asked.started_by)).run()


if __name__ == "__main__":
    main()
