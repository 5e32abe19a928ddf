"""Find changes of the step time, drifts and stalls: inserted ones are found, and none is reported in noise."""

import itertools

import numpy as np
import pytest

from analyzers import steps
from analyzers.steps import step_times
from analyzers.steps.step_times import SHORTEST, Segment, cheapest_cuts, penalty, segments, standard_ranks

MS = 1_000_000


def noise(kind, rng, count):
    if kind == "heavy":
        return 100 + rng.exponential(size=count) + (rng.random(count) < 0.05) * 50
    values = rng.normal(size=count)
    if kind == "resembling":
        for i in range(1, count):
            values[i] += 0.4 * values[i - 1]
    return 100 + values


def test_the_example_of_the_documentation():
    values = np.array([1.0, 1.1, 0.9] * 5 + [2.0, 2.1, 1.9] * 5)
    values[3] = 9.0
    assert segments(values) == [Segment(0, 15, 1.0), Segment(15, 30, 2.0)]
    assert len(segments(np.delete(values, [*range(10, 15), *range(25, 30)]))) == 1


@pytest.mark.parametrize("kind", ["normal", "heavy", "resembling"])
def test_no_alarm_on_noise(kind):
    """Of two thousand healthy series of different lengths, almost none is divided."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(20, 150, size=700)
    alarms = sum(len(segments(noise(kind, rng, count))) > 1 for count in lengths)
    assert alarms <= (7 if kind == "resembling" else 2)


def cheapest(values, price):
    """Return the best division of the series into segments, by trying all of them."""

    def cost(cuts):
        parts = np.split(values, cuts)
        if min(map(len, parts)) < SHORTEST:
            return np.inf
        return sum(((part - part.mean()) ** 2).sum() for part in parts) + price * len(cuts)

    ways = (cuts for count in range(4) for cuts in itertools.combinations(range(SHORTEST, len(values)), count))
    return min(ways, key=lambda cuts: cost(list(cuts)))


@pytest.mark.parametrize("seed", range(12))
def test_the_segmentation_is_the_cheapest_of_all(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=20) + np.repeat(rng.normal(scale=3, size=4), 5)
    for price in (0.5, 3.0, penalty(values)):
        assert tuple(cheapest_cuts(standard_ranks(values), price)) == cheapest(standard_ranks(values), price)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [60, 2000, 5000])
def test_a_planted_change_is_found_where_it_is(seed, count):
    rng = np.random.default_rng(seed)
    where = int(rng.integers(count // 4, 3 * count // 4))
    values = noise("heavy", rng, count) + 8 * (np.arange(count) >= where)
    (_, second) = segments(values)
    assert abs(second.begin - where) <= 8 * -(-count // step_times.LONGEST_SERIES)


def pace(job, more, **options):
    return steps.analyze(job(device="cuda", steps=120, **options).run(more))


def test_all_ranks_slow_down_and_the_phase_behind_it(job):
    report = pace(job, lambda _, step: {"bwd": 12.0} if step > 70 else {})
    (change,) = report.data.changes
    assert (change.kind, change.step) == ("step", 71)
    assert (change.before_s, change.after_s) == (pytest.approx(0.1055, abs=0.002), pytest.approx(0.1175, abs=0.002))
    assert change.phases["bwd"] == pytest.approx(0.012, abs=0.002)
    assert max(change.phases, key=change.phases.get) == "bwd"
    assert (report.verdict.kind, report.findings[0].step) == ("slowdown", 71)
    assert report.findings[0].evidence[0].text.startswith("the phase bwd takes 1")


def test_what_recovers_is_two_changes(job):
    report = pace(job, lambda _, step: {"optim": 20.0} if 40 < step <= 80 else {})
    assert [(c.step, c.after_s > c.before_s) for c in report.data.changes] == [(41, True), (81, False)]


def test_a_drift_is_no_staircase(job):
    report = pace(job, lambda _, step: {"fwd": step * 0.4})
    (change,) = report.data.changes
    assert change.kind == "drift"
    assert change.after_s - change.before_s == pytest.approx(0.040, abs=0.01)
    assert "gradually" in report.verdict.sentence
    # Nothing happened at one step, so the advice is about what grows; the copies, which grew by microseconds, did not.
    assert report.findings[0].next.startswith("Look for what grows with the number of steps")
    assert [fact.text.split()[2] for fact in report.findings[0].evidence] == ["fwd"]


def test_small_changes_are_not_worth_telling(job):
    assert pace(job, lambda _, step: {"bwd": 3.0} if step > 60 else {}).data.changes == []


def test_a_straggler_explains_the_slower_steps(job):
    report = pace(job, lambda rank, step: {"fwd": 30.0} if rank == 1 and step > 60 else {})
    assert report.data.changes[0].step == 61
    assert [f.id for f in report.findings] == ["steps.straggler"]


@pytest.mark.parametrize("seed", range(15))
def test_healthy_runs_have_no_findings(job, seed):
    report = steps.analyze(job(ranks=1 + seed % 5, steps=30 + 20 * seed, noise=0.04, seed=seed, device="cuda").run())
    assert (report.verdict.kind, report.findings, report.data.changes, report.data.stalls) == ("healthy", [], [], [])


def test_storage_that_stalls_all_ranks(job):
    report = pace(job, lambda _, step: {"data_wait": 150.0} if step in (20, 50, 90, 91) else {})
    (stall,) = report.data.stalls
    assert (stall.cause, stall.steps, stall.first_step, stall.last_step) == ("data", 4, 20, 91)
    assert stall.lost_s == pytest.approx(0.6, abs=0.03)
    assert (report.verdict.kind, report.verdict.ranks, report.data.stragglers) == ("global_stall", [0, 1, 2, 3], [])


def test_special_steps_are_told_apart(job):
    def tags(_, step):
        return ["checkpoint"] if step % 10 == 0 else ["first", "gc"] if step == 1 else []

    report = steps.analyze(
        job(device="cuda", steps=60).run(lambda _, s: {"log": 400.0} if s % 10 == 0 else {}, tags=tags)
    )
    assert {tag: one.steps for tag, one in report.data.tagged.items()} == {"first": 1, "gc": 1, "checkpoint": 6}
    assert report.data.tagged["checkpoint"].median_step_s == pytest.approx(0.5, abs=0.02)
    assert report.data.ranks[0].median_step_s == pytest.approx(0.104, abs=0.003)
    assert report.verdict.kind == "healthy"
