"""The data of `workbench.proof/1`: an advice against a failed allocation, applied and run again."""

from enum import StrEnum

import msgspec

Settings = dict[str, bool | int | str]


class Basis(StrEnum):
    """How the memory with changed settings was predicted."""

    REHEARSAL = "rehearsal"
    """The changed step ran on tensors without values, so that the whole peak is known."""
    FAILED_REQUEST = "failed_request"
    """What grows with the batch was scaled at the request that failed, which may come before the peak."""


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """Changed settings, the peak memory in bytes that was predicted for them, and whether it fits into the room."""

    changes: Settings
    predicted_bytes: int
    fits: bool


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """A second run with changed settings under the same limit.

    `peak_bytes` is the highest peak of a rank's tensors (None: not recorded), `steps` the number of steps that ended;
    `passed` is true if no allocation failed and the run ended well.
    """

    folder: str
    command: list[str]
    passed: bool
    steps: int
    peak_bytes: int | None


class ProofData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of `workbench.proof/1`.

    `room_bytes` is the memory that tensors had under the limit: what was allocated and free at the failure.
    `needed_bytes` is the predicted peak of the settings as they were, if a rehearsal was possible. `considered` are the
    changes in the order in which they were compared; those that fit were run in turn until one passed: `reruns` of
    them, of which `rerun` is the last. `not_applied` says why there is none.
    """

    finding: str
    limits: dict[str, int]
    room_bytes: int
    needed_bytes: int | None
    basis: Basis | None
    considered: list[Considered]
    rerun: Rerun | None
    not_applied: str
    reruns: int = 0

    @property
    def applied(self) -> Considered | None:
        """The changes that were run; None if nothing was."""
        fitting = [one for one in self.considered if one.fits]
        return fitting[-1] if self.rerun and fitting else None

    @property
    def error(self) -> float | None:
        """By which fraction the prediction is above (positive) or below the measured peak; None without both."""
        measured = self.rerun.peak_bytes if self.rerun else None
        return self.applied.predicted_bytes / measured - 1 if self.applied and measured else None
