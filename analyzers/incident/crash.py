"""Find the first uncaught exception of a run, over all ranks, launchers and restarts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from analyzers import hangs
from analyzers.frames import is_library
from analyzers.hangs import ExitFile, Frame
from analyzers.log_signs import first_error, split_hint
from analyzers.run import Run

_LONGEST_MESSAGE = 300
NOT_FINITE = re.compile(r"\bnan\b|finite", re.IGNORECASE)
"""Matches the errors of checks by PyTorch and users, such as "loss is NaN" or "non-finite gradients"."""


@dataclass(frozen=True)
class Crash:
    """An uncaught exception, as a rank recorded it (`exit_file`), and the path of the file that holds it (`source`)."""

    exit_file: ExitFile
    source: str

    @property
    def is_symptom(self) -> bool:
        """Whether the exception was raised because a different rank ended or did not arrive in time."""
        return hangs.is_victim(self.exit_file)

    @property
    def message(self) -> str:
        """The exception as Python prints it, with its class and message: `ValueError: no tokens`."""
        # The launcher may have recorded only the class or only the text.
        own = f"{self.exit_file.error}: {self.exit_file.message}".removesuffix(": ").removeprefix(": ")
        return first_error(self.exit_file.message) or own

    @property
    def ranks(self) -> list[int]:
        """The rank that raised the exception, in a list; empty if it is unknown."""
        return [self.exit_file.rank] if self.exit_file.rank >= 0 else []

    @property
    def line(self) -> Frame | None:
        """The innermost frame of the user's own code in the exception's traceback; None without one."""
        return next((f for f in self.exit_file.traceback if not is_library(f.filename)), None)

    @property
    def says_not_finite(self) -> bool:
        """Whether the text of the exception mentions numbers that are not finite, such as a loss of NaN."""
        return bool(NOT_FINITE.search(self.message))


def first_crash(run: Run) -> Crash | None:
    """Return the earliest exception that was not caused by another rank's failure, else the earliest of all.

    The result is None if there is none.
    """
    crashes = sorted((Crash(*error) for error in hangs.read_errors(run)), key=lambda crash: crash.exit_file.time_ns)
    cause = _launchers_cause(run.manifest().get("cause"))
    if cause and not any(crash.message == cause.message for crash in crashes):
        # In front, as its time is not known: the launcher names the rank that failed first.
        crashes.insert(0, cause)
    # min keeps the first of equals: the earliest crash of its kind.
    return min(crashes, key=lambda crash: crash.is_symptom, default=None)


def _launchers_cause(cause: object) -> Crash | None:
    """Return the error that the launcher recorded in the field `cause` of `run.json`; None if it names no error.

    The error has no traceback.
    """
    if not isinstance(cause, dict) or not (cause.get("error") or cause.get("message")):
        return None
    rank = cause.get("rank")
    exit_file = ExitFile(
        rank=rank if isinstance(rank, int) else -1,
        error=str(cause.get("error") or ""),
        message=_first_line(str(cause.get("message") or "")),
        hint=split_hint(str(cause.get("message") or ""))[1],
    )
    return Crash(exit_file, str(cause.get("log") or ""))


def _first_line(text: str) -> str:
    """Return the first line of a message, truncated to a length that fits in a sentence."""
    return (text.strip().splitlines() or [""])[0][:_LONGEST_MESSAGE]


def is_completed(manifest: Mapping[str, object]) -> bool:
    """Return whether `run.json` (`manifest`) records that the run ended without an error."""
    return manifest.get("status") == "completed"
