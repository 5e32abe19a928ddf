"""A scene as lines, for a pipe or a log: each says what has happened since the one before."""

from collections.abc import Iterator

from analyzers.report import Report
from analyzers.steps.live import Now, StepNow
from analyzers.words import duration, size
from workbench.colours import SEVERITY_SIGNS
from workbench.watch.job_state import Scene
from workbench.watch.status_text import lost_ranks, stalled


class Narrator:
    """Tells each thing once. A job that was started again tells its steps again."""

    def __init__(self) -> None:
        self._last, self._attempt = (0, 0), 0
        self._told: set[str] = set()
        self._standing: tuple[str, ...] = ()
        self._verdict = ""

    def tell(self, scene: Scene) -> Iterator[str]:
        """The lines that this scene adds."""
        now = scene.now
        yield from self._restart(now)
        yield from self._steps(now)
        yield from self._trouble(now)
        if scene.report:
            yield from self._judged(scene.report)

    def _restart(self, now: Now) -> Iterator[str]:
        if now.attempt > self._attempt:
            self._attempt = now.attempt
            yield f"started again, attempt {now.attempt}"

    def _steps(self, now: Now) -> Iterator[str]:
        for one in now.recent:
            if (one.start_ns, one.step) > self._last:
                self._last = one.start_ns, one.step
                yield step_line(one, now)

    def _trouble(self, now: Now) -> Iterator[str]:
        """Findings once each, stalls and lost ranks when they begin or change."""
        for finding in now.findings:
            if finding.id not in self._told:
                self._told.add(finding.id)
                yield f"{SEVERITY_SIGNS[finding.severity]} {finding.title}"
        lost = [one.rank for one in now.ranks if one.state in ("failed", "gone")] if not now.ended else []
        stood = now.stall.ranks if now.stall else []
        standing = (str(lost), str(stood))
        if standing != self._standing:
            self._standing = standing
            if lost:
                yield f"✗ {lost_ranks(lost)}"
            if now.stall:
                yield f"‖ {stalled(now.stall)}"

    def _judged(self, report: Report[object]) -> Iterator[str]:
        verdict, lead = report.verdict, report.lead()
        if verdict.sentence != self._verdict:
            self._verdict = verdict.sentence
            yield f"verdict: {verdict.kind.replace('_', ' ')}: {verdict.sentence}"
            if lead:
                yield f"why: {lead.why}"
                yield f"next: {lead.next}"


def step_line(one: StepNow, now: Now) -> str:
    """`step 3/10  loss 5.1  tps 1,234  memory 1.2 GiB`."""
    of = f"/{now.steps}" if now.steps else ""
    loss = "-" if one.loss is None else f"{one.loss:.4f}"
    rate = "-" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}"
    return f"step {one.step}{of}  loss {loss}  tps {rate}  memory {size(one.memory_bytes)}  took {duration(one.dur_s)}"
