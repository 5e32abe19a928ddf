"""Read the files beside the dumps: process groups, stacks, how ranks ended, and how the dumps were collected."""

import re
import signal
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

import msgspec

from analyzers.files import RANKS_AT_MOST, open_regular, rank_in
from analyzers.hangs.model import Frame
from analyzers.hangs.reading.debug_server import holds_many, read_stacks, read_unanswered
from analyzers.hangs.reading.exits import (
    ORDERLY_SIGNALS,
    Ending,
    RankEnd,
    find_log_files,
    is_victim,
    read_gloo_sizes,
    read_last_errors,
)
from analyzers.hangs.reading.side_formats import (
    Answer,
    AnswerStatus,
    Collection,
    CollectionReason,
    ExitFile,
    GroupsFile,
    Heartbeat,
    Round,
    Struct,
    ThreadError,
    read_side,
)
from analyzers.hangs.reading.thread_stacks import read_main_thread
from analyzers.kinds import BEAT
from analyzers.node_health import NodeGaps, NodeHealth, Process, read_health
from analyzers.run import Artefact, Kind, Run

DONE_PHASE = "done"
"""The phase in the last heartbeat of a rank whose training ended cleanly."""
NO_GROUP_PHASE = "process group destroyed"
"""The phase in the heartbeat of a rank that has destroyed its process groups and continues to run."""
_FATAL_ERROR = "Fatal Python error: "
_FIRST_LINE_BYTES = 200


@dataclass(frozen=True)
class LastBeat:
    """The last heartbeat of a rank's process: its phase, when it entered this phase, and the step (0: none counted).

    A phase is a part of a step, such as backward.
    """

    time_ns: int
    step: int
    phase: str

    @property
    def is_done(self) -> bool:
        """Whether the phase says that the rank ended cleanly."""
        return self.phase == DONE_PHASE


@dataclass(frozen=True)
class FatalSignal:
    """The signal that ended a rank, by the name that Python prints (`Aborted`), and the stack of its main thread."""

    name: str
    stack: list[Frame] = field(default_factory=list)


@dataclass(frozen=True)
class LastWords:
    """What ranks last wrote before they ended, by rank: heartbeats, fatal signals, errors that ended threads."""

    beats: dict[int, LastBeat] = field(default_factory=dict)
    signals: dict[int, FatalSignal] = field(default_factory=dict)
    thread_errors: dict[int, ThreadError] = field(default_factory=dict)


def _read_last_words(sides: Iterable[tuple[Path, GroupsFile]]) -> LastWords:
    """Return the last heartbeat, the fatal signal and the thread errors of each rank.

    `sides` has (path, content) of `groups_R.json` for each rank R. The process id in it identifies the rank's last
    process; heartbeats and thread errors of earlier processes are left out.
    """
    words = LastWords()
    for path, side in sides:
        dumps = path.parent
        if beat := _read_last_beat(dumps.parent / "steps" / f"heartbeat_{side.rank}.bin", side.pid):
            words.beats[side.rank] = beat
        if fatal := _read_fatal_signal(dumps / f"crash_{side.rank}.txt", side.rank):
            words.signals[side.rank] = fatal
        error = read_side(dumps / f"thread_{side.rank}.json", ThreadError)
        if error and error.pid in (0, side.pid):
            words.thread_errors[side.rank] = error
    return words


def _read_last_beat(path: Path, pid: int) -> LastBeat | None:
    """Return the last heartbeat of process `pid` in a heartbeat file; with `pid` 0, the last heartbeat of any process.

    The result is None if there is none, or if the file belongs to another process, from a different start of the job.
    """
    try:
        with open_regular(path) as file:
            time_ns, step, beat_pid, beats, phase = BEAT.unpack(file.read(BEAT.size))
    except (OSError, struct.error):
        return None
    # The file is all zeros until its rank writes the first heartbeat.
    if not beats or (pid and beat_pid != pid):
        return None
    return LastBeat(time_ns, step, phase.rstrip(b"\0").decode(errors="replace"))


def _read_fatal_signal(path: Path, rank: int) -> FatalSignal | None:
    """Return the fatal signal that faulthandler wrote to a file, with the stack of `rank`; None if there was none."""
    try:
        with open_regular(path) as file:
            first = file.readline(_FIRST_LINE_BYTES).decode(errors="replace").strip()
    except OSError:
        return None
    if not first.startswith(_FATAL_ERROR):
        return None
    return FatalSignal(first.removeprefix(_FATAL_ERROR), read_main_thread(path, rank))


_COLLECTION_NS = 2_000_000_000
"""The longest time in ns that collecting the dumps of all ranks may take."""
SIGNAL = "signal"
_AFTER_ROUND_NS = 100_000_000
"""The time in ns after the request for its dump within which a hanging rank may still send a heartbeat.

That happens if the request comes just as the rank enters the operation in which it hangs.
"""
_NOT_SERVING = {AnswerStatus.EXITED: Ending.PROCESS_EXITED, AnswerStatus.REFUSED: Ending.CONNECTION_REFUSED}
_ROUND = re.compile(r"round_(\d+)")


@dataclass
class SideFiles:
    """The contents of all files beside the dumps, by rank; each part may be empty.

    Files that may be large, such as stacks and logs, are stored as paths and read when they are needed.
    """

    groups: dict[int, GroupsFile] = field(default_factory=dict)
    exits: dict[int, ExitFile] = field(default_factory=dict)
    stack_files: dict[int, Path] = field(default_factory=dict)
    child_files: dict[int, Path] = field(default_factory=dict)
    message_files: dict[int, Path] = field(default_factory=dict)
    new_group_files: dict[int, Path] = field(default_factory=dict)
    log_files: dict[int, Path] = field(default_factory=dict)
    step_logs: dict[int, Path] = field(default_factory=dict)
    collection: Collection | None = None
    exit_codes: dict[int, int] = field(default_factory=dict)
    last_words: LastWords = field(default_factory=LastWords)
    world_size: int = 0
    health: NodeHealth = field(default_factory=NodeHealth)
    """The state of the ranks' processes and of their GPUs, as the nodes reported it."""
    gaps: NodeGaps = field(default_factory=NodeGaps)
    """The nodes that did not send all of their files to the run folder."""
    waited: frozenset[int] = frozenset()
    """The ranks whose dumps show that they waited for another rank; an exit code alone does not make them culprits."""
    outdated: frozenset[int] = frozenset()
    """The ranks whose dumps are all from before the last restart of the job; these dumps are not read."""

    @property
    def rounds(self) -> list[Round]:
        """The rounds of requests for dumps, oldest first; empty if the collection of dumps was not recorded."""
        return self.collection.rounds if self.collection else []

    def answer(self, rank: int) -> Answer | None:
        """Return the record of the first request for a rank's dump; None if there is none."""
        return self.rounds[0].ranks.get(rank) if self.rounds else None

    def answered_ns(self, rank: int) -> int | None:
        """Return when a rank's dump arrived, in nanoseconds since the epoch; None if the rank did not answer.

        If the dumps were collected several times (in rounds), this is the time of the first one.
        """
        answer = self.answer(rank)
        return (answer.answered_ns or answer.asked_ns) if answer and answer.status == AnswerStatus.OK else None

    def asked_ns(self, rank: int) -> int | None:
        """Return when a rank was asked for its dump, in nanoseconds since the epoch; None if the rank did not answer.

        The dump has the operations that began before that time; later ones may be missing.
        """
        answer = self.answer(rank)
        return answer.asked_ns if answer and answer.status == AnswerStatus.OK else None

    def heartbeat(self, rank: int) -> Heartbeat | None:
        """Return the heartbeat of a rank in the first round of dumps; None if none was recorded."""
        answer = self.answer(rank)
        return answer.heartbeat if answer else None

    def last_beat(self, rank: int) -> LastBeat | None:
        """Return the last heartbeat of a rank's current process, which may be newer than any dump; None without one."""
        return self.last_words.beats.get(rank)

    def registered_later(self, rank: int) -> bool:
        """Return whether a rank had not yet registered when its dump was requested, but did so later.

        A rank registers by writing a file with the address for requests. Before that, a missing dump proves nothing.
        """
        answer = self.answer(rank)
        return bool(answer and answer.status == AnswerStatus.UNREGISTERED) and rank in self.groups

    def ended_cleanly(self, rank: int) -> bool:
        beat = self.last_beat(rank)
        return bool(beat and beat.is_done) and rank not in self.exits and not self.exit_codes.get(rank)

    def was_signalled(self, rank: int) -> bool:
        return any((a := number.ranks.get(rank)) and a.stacks == SIGNAL for number in self.rounds)

    def all_ended_cleanly(self, world_size: int) -> bool:
        return world_size > 0 and all(self.ended_cleanly(rank) for rank in range(world_size))

    def has_moved_past(self, rank: int) -> bool:
        """Return whether a rank went on after the last round of dumps, or ended cleanly: its dumps are outdated."""
        asked = [a.asked_ns for number in self.rounds if (a := number.ranks.get(rank)) and a.asked_ns]
        beat = self.last_beat(rank)
        if rank in self.exits or beat is None:
            return False
        return bool(asked and beat.time_ns > max(asked) + _AFTER_ROUND_NS) or self.ended_cleanly(rank)

    def main_stack(self, rank: int) -> list[Frame]:
        path = self.stack_files.get(rank)
        return read_main_thread(path, rank) if path else []

    def end(self, rank: int) -> RankEnd | None:
        """Return how a rank ended; None if it had not ended when the dumps were taken."""
        exit_file, answered = self.exits.get(rank), self.answered_ns(rank)
        # Collecting takes time: a rank that loses its connection just after its dump was taken had waited all the same.
        grace = _COLLECTION_NS if exit_file and is_victim(exit_file) else 0
        if exit_file and (answered is None or exit_file.time_ns < answered + grace):
            return RankEnd(rank, Ending.EXCEPTION, is_victim(exit_file), 0, exit_file.time_ns, exit_file)
        return self._end_of_process(rank) if answered is None else None

    def late_abort(self, rank: int) -> RankEnd | None:
        """Return the end of a rank that a fatal signal ended after its dump was taken; None without such a signal."""
        if rank not in self.last_words.signals or self.end(rank):
            return None
        return self._with_last_words(RankEnd(rank, Ending.PROCESS_EXITED))

    def _end_of_process(self, rank: int) -> RankEnd | None:
        """Return how the process of a rank without a recorded exception ended; None if it had not ended.

        If the rank ended with an error of its own, the result includes its fatal signal, its stack, and gloo's error.
        """
        end = self._process_end(rank)
        if end is None or end.is_victim or end.ending is Ending.NO_ERROR:
            return end
        return self._with_last_words(end)

    def _with_last_words(self, end: RankEnd) -> RankEnd:
        """Return a copy of `end` with the fatal signal, the stack, and gloo's sizes that the rank left behind."""
        rank = end.rank
        fatal, log = self.last_words.signals.get(rank), self.log_files.get(rank)
        sizes = read_gloo_sizes(log) if log else None
        return replace(end, signal=fatal.name if fatal else "", stack=fatal.stack if fatal else [], sizes=sizes)

    def _process_end(self, rank: int) -> RankEnd | None:
        """Return how a rank's process ended, by its exit code or its failure to answer; None if it had not ended.

        The exit code comes from the collector (the process that requests dumps), or else from the launcher.
        """
        answer = self.answer(rank)
        code = answer.exit_code if answer and answer.exit_code is not None else self.exit_codes.get(rank)
        if code == -signal.SIGKILL and answer and answer.status == AnswerStatus.TIMEOUT:
            # It was there when it was asked, and did not answer: its launcher killed it later, as SIGTERM did not.
            return None
        if code:
            return RankEnd(rank, Ending.EXIT_CODE, code in ORDERLY_SIGNALS or (code > 0 and rank in self.waited), code)
        if answer is None or answer.status not in _NOT_SERVING:
            return None
        # A process that ends well stops serving some time before it is gone.
        clean = code == 0 or has_ended_cleanly(answer) or self.ended_cleanly(rank)
        return RankEnd(rank, Ending.NO_ERROR if clean else _NOT_SERVING[AnswerStatus(answer.status)])


def has_ended_cleanly(answer: Answer) -> bool:
    """Return whether the rank's heartbeat in this answer to a request for its dump marks a clean end."""
    return answer.heartbeat is not None and answer.heartbeat.phase == DONE_PHASE


def read_side_files(run: Run, folders: Sequence[Path], *, first_round: int = 1) -> SideFiles:
    """Return what ranks left besides their dumps: errors, stacks, gloo messages, new groups and logs.

    `folders` has one folder of dumps per node; a file in one of them is preferred to a file of the same kind and rank
    elsewhere. Rounds (requests to all ranks for their dumps) before `first_round` are left out.
    """
    manifest = manifest_of(run)
    group_files = _read_with_paths(run, Kind.GROUPS, folders, GroupsFile)
    groups = {f.rank: f for _, f in group_files}
    exits = read_last_errors(run) | {f.rank: f for _, f in _read_with_paths(run, Kind.EXIT, folders, ExitFile)}
    world_size = manifest.get("world_size")
    side = SideFiles(
        groups=groups,
        # An exit file of another process than the rank's present one is of an earlier attempt.
        exits={r: f for r, f in exits.items() if r not in groups or f.pid in (0, groups[r].pid)},
        stack_files=_stack_pages(run) | _by_rank(run, Kind.STACKS, folders, first_round),
        child_files=_by_rank(run, Kind.CHILD_STACKS, folders, first_round),
        message_files=_by_rank(run, Kind.MESSAGES, folders, first_round),
        new_group_files=_nearest_by_rank(run, Kind.NEW_GROUPS, folders),
        log_files=find_log_files(run),
        step_logs=_nearest_by_rank(run, Kind.STEPS, folders),
        exit_codes=exit_codes(manifest),
        last_words=_read_last_words(group_files),
        world_size=world_size if isinstance(world_size, int) and 0 < world_size <= RANKS_AT_MOST else 0,
    )
    processes = {rank: Process(file.pid, file.host) for rank, file in groups.items()}
    side.health = read_health(run, folders, processes)
    side.collection = joined([c for f in folders if (c := read_side(f / "collection.json", Collection))])
    side.collection = side.collection or _collection_of_pages(run)
    if side.collection:
        side.collection.rounds = side.collection.rounds[first_round - 1 :]
    return side


def _stack_pages(run: Run) -> dict[int, Path]:
    """Return {rank: saved page of the debug server that has its stack}.

    The newest page `/stacks` is used, or else the newest `/pyspy_dump`: only py-spy can read the stack of a rank that
    does not release Python's global lock (GIL).
    """
    pages = [a.path for a in run.of(Kind.STACKS) if a.rank is None and holds_many(a.path)]
    pages.sort(key=lambda path: (path.stat().st_mtime, path.name))
    # Sorted so that `/stacks`, which comes from the process itself, overwrites py-spy's view of it.
    newest = {"py" in path.name: path for path in pages}
    return {
        rank: newest[by_py_spy] for by_py_spy in sorted(newest, reverse=True) for rank in read_stacks(newest[by_py_spy])
    }


def _collection_of_pages(run: Run) -> Collection | None:
    """Return a `Collection` made from saved pages of PyTorch's debug server; it lists the ranks that did not answer.

    The result is None if no page names such a rank.
    """
    pages = [a.path for a in run.of(Kind.FLIGHT) if holds_many(a.path)]
    silent = {rank: Answer(status=status) for path in pages for rank, status in read_unanswered(path).items()}
    return Collection(reason=CollectionReason.ASKED, rounds=[Round(ranks=silent)]) if silent else None


def joined(collections: Sequence[Collection]) -> Collection | None:
    """Return one `Collection` that merges those of several nodes, round by round; None if there is none."""
    if len(collections) < 2:
        return collections[0] if collections else None
    first = min(collections, key=lambda c: c.asked_ns)
    same_round = zip_longest(*(c.rounds for c in collections))
    rounds = [
        Round(number, first.asked_ns, {rank: answer for part in parts if part for rank, answer in part.ranks.items()})
        for number, parts in enumerate(same_round, 1)
    ]
    blocks = {name: lines for c in reversed(collections) for name, lines in c.blocks.items()}
    return msgspec.structs.replace(first, rounds=rounds, blocks=blocks)


def _by_rank(run: Run, kind: Kind, folders: Sequence[Path], first_round: int) -> dict[int, Path]:
    """Return, for one kind of file, {rank: path} with each rank's file from the earliest round of dumps that has one.

    Rounds before `first_round`, and files in the folders of other sets of dumps, are ignored. A file in none of these
    folders is used only if there is no other.
    """
    other_sets = {a.path.parent for a in run.of(Kind.COLLECTION)}.difference(folders)
    files = [(a, *base_of(a.path)) for a in _nearest_last(run, kind, folders)]
    return {
        a.rank: a.path
        for a, base, number in files
        if a.rank is not None and base not in other_sets and not (base in folders and number < first_round)
    }


def _nearest_by_rank(run: Run, kind: Kind, folders: Sequence[Path]) -> dict[int, Path]:
    """Return, for one kind of file that is written all the time, {rank: path of the file nearest to the dumps}.

    Such a file is not part of a round or set of dumps: the file in `dumps` is also used for the dumps in `dumps/set_2`.
    """
    return {a.rank: a.path for a in _nearest_last(run, kind, folders) if a.rank is not None}


def _nearest_last(run: Run, kind: Kind, folders: Sequence[Path]) -> list[Artefact]:
    """Return the artefacts of one kind, sorted so that those beside the first round of dumps come last.

    A caller that builds {rank: file} from them in this order keeps the nearest file of each rank. `folders` are the
    folders of the set of dumps.
    """

    def closeness(artefact: Artefact) -> tuple[bool, int, Path]:
        base, number = base_of(artefact.path)
        return base in folders, -number, artefact.path

    return sorted(run.of(kind), key=closeness)


def base_of(path: Path) -> tuple[Path, int]:
    """Return (folder of the set of dumps, number of the round) for a file that was written with a dump.

    For example, `dumps/set_2/round_3/rank_0` belongs to round 3 in `dumps/set_2`; a file outside a `round_N` folder
    belongs to round 1.
    """
    match = _ROUND.fullmatch(path.parent.name)
    return (path.parent.parent, int(match[1])) if match else (path.parent, 1)


def _read_with_paths(
    run: Run, kind: Kind, folders: Sequence[Path], struct: type[Struct]
) -> Sequence[tuple[Path, Struct]]:
    """Return (path, content) of the files of one kind; files that do not have the format of `struct` are left out.

    Files beside the first round of dumps come last.
    """
    files = ((a.path, read_side(a.path, struct)) for a in _nearest_last(run, kind, folders))
    return [(path, content) for path, content in files if content]


def manifest_of(run: Run) -> Mapping[str, object]:
    """Return the content of `run.json`; `run` may also be a folder of dumps inside the run folder.

    The result is empty if there is no such file.
    """
    if manifest := run.manifest():
        return manifest
    # `dumps/set_2/round_2` lies three folders below run.json.
    folders = (run.root, *run.root.resolve().parents[:3])
    above = next((f / "run.json" for f in folders if (f / "run.json").is_file()), None)
    return Run(above.parent, (Artefact(above, Kind.MANIFEST),)).manifest() if above else {}


def exit_codes(manifest: Mapping[str, object]) -> dict[int, int]:
    """Return {rank: exit code} from `run.json` (`manifest`), where the launcher recorded it."""
    codes = manifest.get("exit_codes")
    if not isinstance(codes, dict):
        return {}
    named = ((rank_in(rank), code) for rank, code in codes.items())
    return {rank: code for rank, code in named if rank is not None and isinstance(code, int)}
