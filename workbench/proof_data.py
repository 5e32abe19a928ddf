"""The data of a proof report (`workbench.proof/1`), which `workbench inspect RUN --prove` prints.

A proof is a second run: after a failed allocation, the job runs again with the advice applied.
"""

from enum import StrEnum

import msgspec

Settings = dict[str, bool | int | str]


class Basis(StrEnum):
    """How the memory with changed settings was predicted."""

    REHEARSAL = "rehearsal"
    """One step with the changed settings ran on tensors without values, so that its whole peak is known."""
    FAILED_REQUEST = "failed_request"
    """The memory at the request that failed was taken, and the part of it that grows with the batch was scaled down.

    That request may come before the peak.
    """


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """Changed settings, the peak memory in bytes that was predicted for them, and whether that memory is available."""

    changes: Settings
    predicted_bytes: int
    fits: bool


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """A second run of the job with changed settings, under the memory limits of the first run.

    `peak_bytes` is the highest peak memory of any rank's tensors (None: not recorded). `steps` is the number of steps
    that every rank finished. `passed` is true if no allocation failed and the run ended without an error.
    """

    folder: str
    command: list[str]
    passed: bool
    steps: int
    peak_bytes: int | None


class ProofData(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a proof report: the changes against a failed allocation, and how a second run with them went.

    `room_bytes` is the memory that tensors could use: allocated plus free bytes at the failure. `needed_bytes` is the
    predicted peak with unchanged settings (None: not predicted). `considered` has the changes in the order in which
    they were compared. `margin` is the relative error that a prediction on this `basis` and mesh may have. Those that
    fit were run in turn until one run passed: `reruns` is the number of these runs, and `rerun` the last of them. If
    there was none, `not_applied` says why, and `instead` what to do.
    """

    finding: str
    limits: dict[str, int]
    room_bytes: int
    needed_bytes: int | None
    basis: Basis | None
    considered: list[Considered]
    rerun: Rerun | None
    not_applied: str
    instead: str = ""
    reruns: int = 0
    margin: float | None = None

    @property
    def applied(self) -> Considered | None:
        """The changes of settings in the last of the second runs; None if there was no such run."""
        fitting = [one for one in self.considered if one.fits]
        return fitting[-1] if self.rerun and fitting else None

    @property
    def error(self) -> float | None:
        """The relative error of the predicted peak: 0.1 if it is 10 % above the measured peak, negative if below.

        The result is None if no change was run, or if the peak was not measured.
        """
        measured = self.rerun.peak_bytes if self.rerun else None
        return self.applied.predicted_bytes / measured - 1 if self.applied and measured else None

    @property
    def excess(self) -> float | None:
        """The measured peak relative to the predicted one: 0.1 if it is 10 % above the prediction, negative if below.

        A margin limits this number. It is None if a change was not run or its peak was not measured.
        """
        measured = self.rerun.peak_bytes if self.rerun else None
        return measured / self.applied.predicted_bytes - 1 if self.applied and measured else None

    @property
    def is_within_margin(self) -> bool | None:
        """Whether the measured peak is within the margin of the predicted one; None if either is not known."""
        if self.margin is None or self.excess is None:
            return None
        return abs(self.excess) <= self.margin
