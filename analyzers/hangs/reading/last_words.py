"""Read what a rank last wrote before it ended: its heartbeat, the stack of a fatal signal, and errors of its threads.

These files may be newer than any dump. They are in the run folder, not beside a set of dumps: `steps/heartbeat_R.bin`,
`dumps/crash_R.txt` and `dumps/thread_R.json`.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from analyzers.damage import BEAT
from analyzers.files import open_regular
from analyzers.hangs.model import Frame
from analyzers.hangs.reading.side_formats import GroupsFile, ThreadError, read_side
from analyzers.hangs.reading.stacks.thread_stacks import read_main_thread

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


def read_last_words(sides: Iterable[tuple[Path, GroupsFile]]) -> LastWords:
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
