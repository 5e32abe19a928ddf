"""Compare two runs: confidence intervals are correct, and gates raise no false alarms and miss no regressions."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from analyzers import compare, run, store
from analyzers.steps import diff
from analyzers.steps.diff import phase_changes
from analyzers.steps.loading import load
from analyzers.words import IN_NO_PHASE

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def pair(job, tmp_path):
    """Fixture: `pair(more_a, more_b, ...)` returns two simulated runs."""

    count = itertools.count()

    def make(*, a=None, b=None, fields=None, first_seed=0, **options):
        found, place = [], tmp_path / str(next(count))
        for number, more in enumerate((a, b)):
            simulated = job(**{"device": "cuda", "seed": first_seed + number} | options)
            simulated.folder = place / "ab"[number]
            simulated.folder.mkdir(parents=True)
            artefacts = simulated.run(more or (lambda rank, step: {}), **((fields or [{}, {}])[number]))
            found.append(run.Run(simulated.folder, tuple(artefacts)))
        return found

    return make


def contrasts(runs):
    return {c.measure: c for c in diff.measure_changes(*(load(r.artefacts, store.Options()) for r in runs))}


def test_the_interval_of_a_known_change(pair):
    found = contrasts(pair(b=lambda _, step: {"bwd": 10.0}, steps=100))["step_time"]
    assert found.low < 10 / 105.5 < found.high
    assert found.high - found.low < 0.02
    assert (found.samples, found.is_sufficient) == (99, True)


def slow_interval(x, y):
    """Return the bootstrap interval, computed one draw at a time with another random generator."""
    rng = random.Random(3)

    def draw(values):
        block = round(len(values) ** (1 / 3))
        made = []
        while len(made) < len(values):
            begin = rng.randrange(len(values))
            made += [values[(begin + i) % len(values)] for i in range(block)]
        return np.median(made[: len(values)])

    return np.percentile([draw(y) / draw(x) - 1 for _ in range(1500)], [2.5, 97.5])


def test_the_bootstrap_against_a_slow_one(pair):
    runs = pair(b=lambda _, step: {"bwd": 5.0}, steps=60, noise=0.1)
    steps = [load(r.artefacts, store.Options()) for r in runs]
    found = contrasts(runs)["step_time"]
    low, high = slow_interval(*(diff.plain_times(one) for one in steps))
    assert (found.low, found.high) == (pytest.approx(low, abs=0.004), pytest.approx(high, abs=0.004))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Two hundred pairs of runs have equal medians; the interval excludes zero about one time in twenty."""
    rng = np.random.default_rng(0)
    outside = 0
    for _ in range(200):
        x, y = rng.gamma(20, size=(2, 60))
        draws = np.random.default_rng(diff.SEED)
        after, before = (np.median(diff.block_resamples(values, draws), axis=1) for values in (y, x))
        low, high = np.percentile(after / before - 1, diff.BOUNDS_PERCENT)
        outside += not low <= 0 <= high
    assert outside <= 22


def test_it_is_the_same_each_time(pair):
    runs = pair(steps=50, noise=0.1)
    assert contrasts(runs) == contrasts(runs)


@pytest.mark.parametrize(("more_ms", "ids"), [(0.0, []), (3.0, []), (12.0, ["compare.step_time"])])
def test_a_gate_on_the_step_time(pair, more_ms, ids):
    report = compare.analyze(*pair(b=lambda _, step: {"bwd": more_ms}, steps=80))
    assert [f.id for f in report.findings] == ids
    assert report.verdict.kind == ("regression" if ids else "healthy")
    if ids:
        assert report.findings[0].evidence[0].text.startswith("phase bwd takes 1")
        assert {row.what: row.interval for row in report.data.rows}["median step time"].startswith("+1")


def test_a_step_time_of_many_times_is_a_multiple(pair):
    report = compare.analyze(*pair(b=lambda _, step: {"bwd": 3000.0}, steps=30))
    assert "of run B is" in report.findings[0].title
    assert "times that of run A" in report.findings[0].title


def test_a_tighter_gate(pair):
    runs = pair(b=lambda _, step: {"bwd": 3.0}, steps=80)
    assert [f.id for f in compare.analyze(*runs, limits={"step_time": 0.01}).findings] == ["compare.step_time"]


def test_what_cannot_be_judged_is_neither_healthy_nor_a_pass(pair):
    runs = pair(steps=5, b=lambda _, step: {"bwd": 50.0})
    report = compare.analyze(*runs)
    assert report.findings == []
    assert (report.verdict.status, report.verdict.kind) == ("unknown", "unknown")
    assert "Median step time +4" in report.verdict.sentence
    assert "4 steps are too few" in report.verdict.sentence
    assert report.verdict.missing[0] == "median step time: at least 5 comparable steps in both runs"
    assert not any("too few" in gap for gap in report.verdict.missing)
    gated = compare.analyze(*runs, limits={"step_time": 0.05})
    assert [f.id for f in gated.findings] == ["compare.step_time_undecided"]
    assert "in which no trace is recorded" in gated.findings[0].next
    assert (gated.verdict.status, gated.verdict.kind) == ("unknown", "unknown")
    assert gated.findings[0].title in gated.verdict.sentence


def test_a_measure_that_no_log_has_is_not_said_to_be_in_one(pair):
    [finding] = compare.analyze(*pair(steps=40), limits={"processor_time": 0.05}).findings
    assert finding.title == "Processor time cannot be judged: it is not in the logs of both runs"
    assert "--map names the column of a measure" in finding.next


def test_a_few_steps_tell_a_large_change(pair):
    report = compare.analyze(*pair(steps=10, noise=0.1, b=lambda _, step: {"bwd": 60.0}))
    assert (report.verdict.kind, [f.id for f in report.findings]) == ("regression", ["compare.step_time"])
    few = {c.measure: c for c in report.data.contrasts}["step_time"]
    many = contrasts(pair(steps=100, noise=0.1, b=lambda _, step: {"bwd": 60.0}))["step_time"]
    assert few.samples == 9
    assert few.high - few.low > 2 * (many.high - many.low)


def test_no_alarm_for_healthy_runs_of_few_steps(pair, here):
    kinds = []
    for first in range(0, 40, 2):
        runs = pair(steps=10, noise=0.1, first_seed=first)
        report = compare.analyze(*runs)
        assert report.findings == []
        kinds.append(report.verdict.kind)
    assert kinds.count("healthy") > 10


def test_a_change_that_may_be_none_is_no_health(pair):
    """The steps differ from each other by more than the runs do."""
    runs = pair(steps=10, noise=1.0, first_seed=4, b=lambda _, step: {"bwd": 40.0 * (step % 3)})
    found = contrasts(runs)["step_time"]
    assert found.low < 0.05 < found.change
    assert compare.analyze(*runs).verdict.kind == "unknown"


def test_recorded_runs_of_nine_steps():
    """From step 6 on, the steps of the straggler's run take more than twice as long: five of nine."""
    runs = [run.discover(FIXTURES / name) for name in ("healthy_4ranks", "straggler_gc_4ranks")]
    report = compare.analyze(*runs)
    assert report.verdict.kind == "regression"
    assert report.verdict.sentence.startswith("Median step time of run B is 1")
    assert "rank 3 of run B makes the others wait: garbage collection" in [
        fact.text for fact in report.findings[0].evidence
    ]
    assert compare.analyze(*runs[::-1]).findings == []


def exact_chance(x, y):
    """Return the exact p-value, by trying every division of the steps into two runs."""
    pooled, seen = np.concatenate([x, y]), abs(y.mean() - x.mean())
    ways = [set(way) for way in itertools.combinations(range(len(pooled)), len(x))]
    away = [
        abs(
            np.mean([v for i, v in enumerate(pooled) if i in way])
            - np.mean([v for i, v in enumerate(pooled) if i not in way])
        )
        for way in ways
    ]
    return np.mean(np.array(away) >= seen * (1 - 1e-9))


def test_the_interval_of_few_steps_against_the_exact_test():
    rng = np.random.default_rng(5)
    x, y = rng.gamma(9, size=6), 1.5 * rng.gamma(9, size=5)
    low, high = diff.permutation_bounds(x, y, np.mean)
    assert low < y.mean() / x.mean() - 1 < high
    for change, inside in ((low + 0.05, True), (high - 0.05, True), (low - 0.05, False), (high + 0.08, False)):
        assert (exact_chance(x * (1 + change), y) >= diff.REJECTED) == inside


def test_the_machine_that_was_busy_is_told_from_more_work(pair):
    """All phases take twice the wall time, but the same processor time."""
    fields = [{}, {"dur_ns": lambda *_: 250_000_000}]
    runs = pair(steps=40, device="cpu", fields=fields)
    found = {c.measure: c for c in compare.analyze(*runs).data.contrasts}
    assert abs(found["processor_time"].change) < 0.02
    (finding,) = compare.analyze(*runs, limits={"processor_time": 0.05}).findings
    assert finding.id == "compare.step_time"
    assert finding.evidence[0].text.startswith(
        "the extra time is waiting, not work: processor time per step changed by "
    )


def test_memory_and_loss(pair):
    more = {"memory_bytes": lambda rank, _: (12 if rank == 1 else 10) << 30, "loss": lambda _, step: 5.2 - step / 100}
    report = compare.analyze(*pair(steps=60, fields=[{"memory_bytes": lambda *_: 10 << 30}, more]))
    assert {f.id for f in report.findings} == {"compare.memory", "compare.loss"}
    assert "`workbench compare A B`" in next(f.next for f in report.findings if f.id == "compare.memory")
    found = {c.measure: c for c in report.data.contrasts}
    assert (found["memory"].a, found["memory"].b) == (10 << 30, 12 << 30)
    assert found["loss"].b - found["loss"].a == pytest.approx(0.2)
    assert found["loss"].low == pytest.approx(found["loss"].high)  # the difference is the same in each step


def test_loss_parity(pair):
    def parting(_, step):
        return 5.0 - step / 100 + (0.001 if step >= 20 else 0) + (0.5 if step >= 35 else 0)

    runs = pair(steps=40, fields=[{}, {"loss": parting}])
    same = compare.analyze(*runs).data.parity
    assert (same.steps, same.identical, same.differs_from, same.diverges_from) == (40, False, 20, 35)
    assert same.largest == pytest.approx(0.501)
    report = compare.analyze(runs[0], runs[0])
    assert report.data.parity.identical
    assert "losses of all 40 common steps are identical" in report.verdict.sentence


def test_what_a_step_gained_adds_up(pair):
    """The parts add up to the change of the mean step, also if the runs have different phases; the slower part is
    first.
    """
    a, b = (load(r.artefacts, store.Options()) for r in pair(b=lambda _, step: {"bwd": 10.0}, steps=40))
    found = phase_changes(a, b)
    means = [float(one.table["dur_s"].to_numpy()[one.plain.to_numpy()].mean()) for one in (a, b)]
    assert sum(one.a_s for one in found) == pytest.approx(means[0])
    assert sum(one.change_s for one in found) == pytest.approx(means[1] - means[0])
    assert found[0].what == "bwd"
    assert found[0].change_s == pytest.approx(0.01, rel=0.2)
    assert found[-1].what == IN_NO_PHASE
