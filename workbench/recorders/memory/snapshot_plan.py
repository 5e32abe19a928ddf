"""Choose the steps that are recorded for memory snapshots, and the steps after which a snapshot is written."""

from dataclasses import dataclass

WINDOW = 5
"""The default number of steps that are recorded before a snapshot: fewer would not show growth from step to step."""


@dataclass(frozen=True)
class SnapshotPlan:
    """The schedule of memory snapshots: a snapshot after every `freq` steps, for which `window` steps are recorded.

    With `last_step`, the `window` steps up to this step are recorded too, for a table of the memory after it. Example:
    with `freq` 10 and `window` 3, steps 8, 9, 10, 18, 19, 20, ... are recorded.
    """

    freq: int = 10
    window: int = WINDOW
    last_step: int | None = None

    def is_due(self, step: int) -> bool:
        """Return whether a snapshot is written after this step."""
        return step % self.freq == 0

    def covers(self, step: int) -> bool:
        """Return whether a step is recorded: it is one of the `window` steps up to a snapshot or up to `last_step`."""
        before_last = -1 if self.last_step is None else self.last_step - step
        return -step % self.freq < self.window or 0 <= before_last < self.window

    @property
    def skips_steps(self) -> bool:
        """Whether the schedule leaves some steps unrecorded."""
        return self.window < self.freq
