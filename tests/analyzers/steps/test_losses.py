"""Find events of the loss: inserted ones are found, and none is reported in a curve that only falls."""

import numpy as np
import pytest

from analyzers import steps


def curve(seed, count=300, noise=0.02):
    """Return a loss curve like that of a language model: a power law with noise."""
    step = np.arange(1, count + 1)
    return 2.0 + 8.0 * step**-0.3 + noise * np.random.default_rng(seed).normal(size=count)


def told(job, losses, norms=None):
    def at(values):
        return lambda _, step: float(values[step - 1]) if np.isfinite(values[step - 1]) else str(values[step - 1])

    norms = np.ones(len(losses)) if norms is None else norms
    simulated = job(ranks=1, steps=len(losses))
    return steps.analyze(simulated.run(loss=at(losses), grad_norm=at(norms)))


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_that_falls_has_no_event(job, seed):
    norms = np.exp(np.random.default_rng(seed).normal(scale=0.3, size=100 + 40 * seed))
    report = told(job, curve(seed, len(norms), noise=0.05), norms)
    assert (report.data.events, report.verdict.kind) == ([], "healthy")


def test_a_spike_and_the_jump_that_led_to_it(job):
    losses, norms = curve(1), np.ones(300)
    losses[150:156] += [3.0, 2.5, 2.0, 1.5, 1.0, 0.7]
    norms[149] = 40.0
    report = told(job, losses, norms)
    assert [(e.kind, e.step, e.until) for e in report.data.events] == [
        ("grad_norm_jump", 150, 151), ("loss_spike", 151, 157)
    ]  # fmt: skip
    assert report.verdict.kind == "loss_spike"
    assert "back to normal at step 157" in report.findings[0].why
    assert "gradient norm jumps from 1 to 40 at step 150" in report.findings[0].evidence[1].text


def test_a_loss_that_rises_and_stays_up(job):
    losses = curve(2)
    losses[200:] += np.minimum(np.arange(100) * 0.05, 2.5)
    report = told(job, losses)
    rise = next(e for e in report.data.events if e.kind == "loss_rise")
    assert 205 <= rise.step <= 245
    assert rise.value > rise.before + 2
    assert report.verdict.kind == "loss_rise"


def test_a_plateau(job):
    losses = np.maximum(curve(3, 600, noise=0.0), 3.6) + 0.02 * np.random.default_rng(3).normal(size=600)
    report = told(job, losses)
    (event,) = report.data.events
    assert (event.kind, event.value) == ("plateau", pytest.approx(3.6, abs=0.01))
    assert report.verdict.kind == "healthy"
    assert report.verdict.missing == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_after_a_broken_loss(job, bad):
    losses = curve(4, 60)
    losses[40:] = bad
    report = told(job, losses)
    assert (report.verdict.kind, report.data.first_nonfinite_step) == ("nonfinite_loss", 41)


@pytest.mark.parametrize("at", [13, 20, 40, 150, 298])
def test_a_spike_on_a_loss_that_falls_fast(job, at):
    step = np.arange(1, 301)
    losses = 10.0 * step**-0.5 * (1 + 0.02 * np.random.default_rng(at).normal(size=300))
    losses[at] *= 1.6
    spikes = [e.step for e in told(job, losses).data.events if e.kind == "loss_spike"]
    assert spikes == [at + 1]


@pytest.mark.parametrize("seed", range(10))
def test_random_walks_heavy_tails_and_drops_are_no_spikes(job, seed):
    chance = np.random.default_rng(seed)
    losses = curve(seed, 400, noise=0.0) * (1 + np.cumsum(chance.normal(size=400)) * 0.005)
    losses += 0.02 * chance.standard_t(5, size=400)
    losses[250:] *= 0.8
    assert [e for e in told(job, losses).data.events if e.kind == "loss_spike"] == []
