"""Search for the fastest settings that fit into memory.

A formula discards settings that need too much memory. The other settings are rehearsed: one step runs on fake tensors,
and the peak memory measured in this step decides whether the settings fit.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from trainer.config import JobConfig
from trainer.errors import TrainerError
from trainer.estimate.__main__ import Case, answer, start
from trainer.estimate.mesh import local_problem
from trainer.estimate.rehearsal import VALIDATION
from trainer.models.decoder import model_args
from trainer.plan.candidates import Candidate, DeviceSpeed, configured
from trainer.plan.step_time import ModelSize, StepTime, peak_bytes, state_bytes, step_time

_OPTIMISM = 0.85
"""Factor on the formula's memory for a candidate, until the same settings are measured with another batch size.

It is below 1, so that no candidate is discarded that may fit.
"""
_PATIENCE = 30.0
"""The seconds after the deadline within which measurements of memory must end."""
_NEVER_LOWER = 0.5
"""The smallest factor by which a measured peak may reduce the formula's estimate for other batch sizes."""


class Measured(NamedTuple):
    """The peak memory of a rank in bytes: of a training step, and of the validation (0: there is none)."""

    step: int
    validation: int


@dataclass(frozen=True)
class Plan:
    """A candidate (one choice of settings), its measured peak memory in bytes, and its estimated step time."""

    candidate: Candidate
    peak: int
    time: StepTime


@dataclass
class Search:
    """A search for the fastest settings of one job on `world_size` ranks that fit into `usable` bytes on each rank.

    The search ends at `deadline`, a time of the monotonic clock. `rehearsed` has the measured peak memory of candidates
    in bytes, and `steps` the peak of a training step alone. `validations` is {layout: bytes of the validation}, which
    has no batch of the training and no recomputation. `refused` has the candidates that the trainer cannot run.
    """

    config: JobConfig
    world_size: int
    usable: float
    speed: DeviceSpeed
    deadline: float
    rehearsed: dict[Candidate, int] = field(default_factory=dict)
    steps: dict[Candidate, int] = field(default_factory=dict)
    validations: dict[Candidate, int] = field(default_factory=dict)
    refused: set[Candidate] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = ModelSize.of(self.config)
        self.microbatch = self.config.parallelism.pipeline_parallel_microbatch_size

    def run(self, choices: Iterable[Candidate], wanted: int) -> list[Plan]:
        """Return up to `wanted` plans that fit into memory, the fastest first.

        The result has fewer plans if no more fit, or if the time is over. Plans differ in more than the batch size.
        """
        ordered = sorted(choices, key=lambda choice: -self.time_of(choice).tokens_per_second)
        while time.monotonic() < self.deadline:
            batch = self.next_to_rehearse(ordered, wanted)
            if not batch:
                break
            self.rehearse(batch)
        return self.plans(ordered)[:wanted]

    def next_to_rehearse(self, ordered: Sequence[Candidate], wanted: int) -> list[Candidate]:
        """Return the candidates to measure next: the fastest unmeasured ones that may fit according to the formula.

        The list has at most one candidate of each family (candidates that differ only in the batch size). It has at
        most one for each CPU core, because each is measured in its own process. It is empty when the `wanted` fastest
        families are measured.
        """
        chosen: dict[Candidate, Candidate] = {}
        settled: set[Candidate] = set()
        for choice in ordered:
            if choice.family in settled or choice.family in chosen or choice in self.refused:
                continue
            if choice in self.rehearsed:
                settled |= {choice.family} if self.rehearsed[choice] <= self.usable else set()
            elif self.corrected(choice) <= self.usable:
                chosen[choice.family] = choice
            if len(chosen) >= (os.cpu_count() or 1) or len(settled) + len(chosen) >= wanted:
                break
        return list(chosen.values())

    def corrected(self, choice: Candidate) -> float:
        """Return the estimated peak memory of a candidate in bytes: the formula's value times a measured correction.

        The correction comes from a measured candidate that differs only in the batch size, as little as possible. If
        there is none, the estimate is optimistic, so that the candidate is measured if it may fit. No peak is below
        that of the validation.
        """
        return max(self.corrected_step(choice), self.validations.get(choice.layout, 0))

    def corrected_step(self, choice: Candidate) -> float:
        """Return the estimated peak memory of a training step in bytes; see `corrected`."""
        family = [(abs(known.batch - choice.batch), known) for known in self.steps if known.family == choice.family]
        if not family:
            return _OPTIMISM * self.formula(choice)
        _, nearest = min(family, key=lambda item: item[0])
        return self.formula(choice) * max(self.steps[nearest] / self.formula(nearest), _NEVER_LOWER)

    def formula(self, choice: Candidate) -> int:
        return peak_bytes(self.model, choice, self.microbatch)

    def time_of(self, choice: Candidate) -> StepTime:
        return step_time(self.model, choice, self.speed, self.microbatch)

    def rehearse(self, choices: Sequence[Candidate]) -> None:
        """Measure the peak memory of several candidates in parallel, each by a step on fake tensors.

        The peaks are stored in `self.rehearsed`. Candidates that the trainer cannot run are added to `self.refused`.
        """
        running = [(choice, [start(case) for case in self.cases(choice)]) for choice in choices]
        for choice, processes in running:
            measured = list[Measured]()
            for process in processes:
                try:
                    measured.append(_measured_of(self.answer(process)))
                except TrainerError:
                    self.refused.add(choice)
            if choice not in self.refused:
                # A rehearsal keeps on the device what offload keeps on the host.
                moved = state_bytes(self.model, choice) if choice.offload else 0
                self.steps[choice] = max(rank.step for rank in measured) - moved
                validation = max(rank.validation for rank in measured) - moved
                self.rehearsed[choice] = max(self.steps[choice], validation)
                if self.config.validation.enable:
                    self.validations[choice.layout] = validation

    def answer(self, process: Connection) -> dict[str, object]:
        """Return the memory of a rank, measured by the process at the other end of the pipe `process`.

        Raises:
            TrainerError: The trainer cannot run the candidate, or the process did not end in time.
        """
        if not process.poll(max(self.deadline + _PATIENCE - time.monotonic(), 0)):
            raise TrainerError(
                "a step on tensors without values did not end in time", "plan again on a machine with more free cores"
            )
        return answer(process)

    def cases(self, choice: Candidate) -> Iterator[Case]:
        """Yield the memory estimates to make for a candidate: one rank of the first pipeline stage, one of the last.

        Ranks in these two stages need the most memory.
        """
        # More microbatches than stages are never in flight at once.
        in_flight = min(choice.batch, choice.pipeline * self.microbatch) if choice.pipeline > 1 else choice.batch
        config = configured(self.config, replace(choice, batch=in_flight))
        local = local_problem(config, self.world_size)
        for stage in sorted({0, choice.pipeline - 1}):
            # The last of the ranks that share a sequence attends to all of it, and so needs the most memory.
            yield Case(local, model_args(config), stage, choice.context - 1, 1)

    def plans(self, ordered: Sequence[Candidate]) -> list[Plan]:
        """Return a plan for each measured candidate that fits into memory, the fastest first.

        `ordered` has the candidates, the fastest first. Of each family (candidates that differ only in the batch size),
        only the fastest is returned.
        """
        best: dict[Candidate, Plan] = {}
        for choice in ordered:
            if self.rehearsed.get(choice, self.usable + 1) <= self.usable and choice.family not in best:
                best[choice.family] = Plan(choice, self.rehearsed[choice], self.time_of(choice))
        return list(best.values())

    def next_larger(self, plan: Plan, choices: Iterable[Candidate]) -> Plan | None:
        """Return `plan` with the next larger batch size among `choices`, after measuring its memory.

        The plan is returned even if it does not fit into memory. Return None if there is no larger batch size, or if
        the trainer cannot run it.
        """
        larger = [c for c in choices if c.family == plan.candidate.family and c.batch > plan.candidate.batch]
        following = min(larger, key=lambda choice: choice.batch, default=None)
        if following is None:
            return None
        if following not in self.rehearsed and following not in self.refused:
            self.rehearse([following])
        peak = self.rehearsed.get(following)
        return Plan(following, peak, self.time_of(following)) if peak is not None else None


def _measured_of(memory: dict[str, Any]) -> Measured:
    windows = dict(memory["windows"])
    validation = windows.pop(VALIDATION, 0)
    return Measured(max(windows.values()), validation)
