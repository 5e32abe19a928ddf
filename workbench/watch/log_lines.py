"""Convert successive states of a watched job to lines of text for a pipe or a log; each line reports something new."""

from collections.abc import Iterator

from analyzers.report import Report
from analyzers.steps.live import FinishedStep, JobState
from analyzers.words import duration, size
from workbench.colours import SEVERITY_SIGNS
from workbench.watch.job_facts import LAUNCHER_LOST, lost_ranks, lost_text, stall_text
from workbench.watch.watched_job import WatchedJob


class LogLines:
    """Converts successive states of a watched job to lines of text, and reports everything only once.

    An exception is a step that a restarted job trains again. Without `with_steps`, there are no lines about steps.
    """

    def __init__(self, *, with_steps: bool = True) -> None:
        self._with_steps = with_steps
        self._launcher_lost = False
        self._last_step, self._attempt = (0, 0), 0
        self._finding_ids: set[str] = set()
        self._notes: set[tuple[int, str]] = set()
        self._troubled: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._sentence = ""

    def new_lines(self, job: WatchedJob) -> Iterator[str]:
        """Yield lines about everything that has happened since the last call."""
        yield from self._restart_lines(job.now)
        yield from self._note_lines(job.now)
        if self._with_steps:
            yield from self._step_lines(job.now)
        yield from self._trouble_lines(job.now)
        if job.report:
            yield from self._verdict_lines(job.report)

    def _restart_lines(self, now: JobState) -> Iterator[str]:
        if now.attempt > self._attempt:
            self._attempt = now.attempt
            yield f"restarted, attempt {now.attempt}"

    def _note_lines(self, now: JobState) -> Iterator[str]:
        for note in now.notes:
            if (now.attempt, note) not in self._notes:
                self._notes.add((now.attempt, note))
                yield note

    def _step_lines(self, now: JobState) -> Iterator[str]:
        for step in now.recent:
            # By start time first: a restarted job counts its steps from the checkpoint again.
            if (step.start_ns, step.step) > self._last_step:
                self._last_step = step.start_ns, step.step
                yield step_line(step, now)

    def _trouble_lines(self, now: JobState) -> Iterator[str]:
        """Yield a line for each new finding, and a line on lost or stalled ranks when these have changed."""
        for finding in now.findings:
            if finding.id not in self._finding_ids:
                self._finding_ids.add(finding.id)
                yield f"{SEVERITY_SIGNS[finding.severity]} {finding.title}"
        if now.launcher_lost and not self._launcher_lost:
            self._launcher_lost = True
            yield f"✗ {LAUNCHER_LOST}"
        lost = lost_ranks(now)
        troubled = (tuple(lost), tuple(now.stall.ranks if now.stall else ()))
        if troubled != self._troubled:
            self._troubled = troubled
            if lost:
                yield f"✗ {lost_text(lost)}"
            if now.stall:
                yield f"‖ {stall_text(now.stall)}"

    def _verdict_lines(self, report: Report[object]) -> Iterator[str]:
        verdict, lead = report.verdict, report.lead()
        if verdict.sentence != self._sentence:
            self._sentence = verdict.sentence
            yield f"verdict: {verdict.kind.replace('_', ' ')}: {verdict.sentence}"
            if lead:
                yield f"why: {lead.why}"
                yield f"next: {lead.next}"


def step_line(step: FinishedStep, now: JobState) -> str:
    """Return a finished step as text such as `step 3/10  loss 5.1000  1,234 tok/s  memory 1.2 GiB  took 870 ms`."""
    total = f"/{now.steps}" if now.steps else ""
    # A step between two that `metrics.log_freq` selects has no loss.
    loss = "" if step.loss is None else f"  loss {step.loss:.4f}"
    rate = "" if step.tokens_per_s is None else f"  {step.tokens_per_s:,.0f} tok/s"
    # Logs of other trainers may have neither.
    memory = f"  memory {size(step.memory_bytes)}" if step.memory_bytes else ""
    took = f"  took {duration(step.dur_s)}" if step.dur_s else ""
    return f"step {step.step}{total}{loss}{rate}{memory}{took}"
