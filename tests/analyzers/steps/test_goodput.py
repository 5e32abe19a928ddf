"""Divide the wall time into parts: they add up to the nanosecond, and are right for timelines with known truth."""

import random

import numpy as np
import pytest

from analyzers import steps, store
from analyzers.steps.goodput import PARTS, divided, goodput_by_rank
from analyzers.steps.lateness import lateness
from analyzers.steps.loading import load

S = 1_000_000_000
BASE = 1_800_000_000 * S


def row(step, start_s, **phases):
    """Return a step whose phases (including `work`) have these durations in seconds."""
    named = {name: round(s * S) for name, s in phases.items() if name != "work"}
    return {"step": step, "start_ns": BASE + round(start_s * S), "dur_ns": round(sum(phases.values()) * S)} | {
        "phases": named | {"fwd": round(phases["work"] * S)}, "loss": 1.0, "tags": []
    }  # fmt: skip


def goodput(job, rows, **options):
    simulated = job(ranks=len(rows), device="cuda", **options)
    simulated.rows = rows
    return steps.analyze(simulated.written()).data.goodput


def test_each_part_of_a_known_timeline(job):
    """By the log's header, the process began 5 s before BASE."""
    lines = [
        row(1, 1.0, work=2.0, data_wait=0.25, h2d=0.25),
        row(2, 3.5, work=2.0, ckpt_save=1.0),
        row(3, 7.0, work=2.0, eval=3.0, gc=0.5, profiler=0.125, snapshot=0.125, log=0.25),
    ]
    found = goodput(job, {0: lines})
    assert (found.started_ns, found.wall_ns) == (BASE - 5 * S, 18 * S)
    assert {name: ns / S for name, ns in found.parts.items()} == {
        "startup": 6.0, "productive": 6.0, "data": 0.5, "checkpoint": 1.0, "evaluation": 3.0, "gc": 0.5,
        "recording": 0.5, "between": 0.5,
    }  # fmt: skip
    assert found.productive == pytest.approx(6 / 18)


def test_a_restart_and_what_it_lost(job):
    """Steps 3 and 4 are done again after a restart from a checkpoint of step 2."""
    first = [row(step, 2.0 * step, work=2.0) for step in range(1, 5)]
    header = {"schema": "workbench.steps/1", "rank": 0, "world_size": 1, "started_ns": BASE + 15 * S}
    again = [row(step, 20.0 + 2 * (step - 3), work=2.0) for step in range(3, 7)]
    found = goodput(job, {0: [*first, header, *again]})
    assert {name: ns / S for name, ns in found.parts.items()} == {
        "startup": 7.0, "productive": 12.0, "redone": 4.0, "restart": 10.0
    }  # fmt: skip


def test_the_example_of_the_documentation(job):
    """By the log's header, the process began 5 s before BASE."""
    first = [row(1, 5.0, work=3.0, data_wait=1.0), row(2, 9.0, work=1.0, ckpt_save=2.0)]
    header = {"schema": "workbench.steps/1", "rank": 0, "world_size": 1, "started_ns": BASE + 15 * S}
    parts = goodput(job, {0: [*first, header, row(2, 25.0, work=3.0)]}).parts
    expected = {"startup": 10, "data": 1, "redone": 3, "restart": 13, "productive": 6}
    assert {name: ns / S for name, ns in parts.items()} == expected


def test_a_rank_that_stops_early(job):
    rows = {rank: [row(step, 2.0 * step, work=2.0) for step in range(1, stop)] for rank, stop in ((0, 11), (1, 6))}
    found = goodput(job, rows)
    assert found.parts["ending"] == 5 * S  # ten seconds of one of two ranks
    assert sum(found.parts.values()) == found.wall_ns == 27 * S


def test_waiting_for_a_straggler_is_a_stall(job):
    artefacts = job(ranks=4, noise=0.0, steps=60, device="cuda").run(lambda rank, _: {"fwd": 50.0} if rank == 2 else {})
    found = steps.analyze(artefacts).data.goodput
    # Three of four ranks wait 50 ms in each of the 59 steps after the first.
    assert found.parts["stall"] == pytest.approx(0.75 * 59 * 0.05 * S, rel=1e-3)


def test_steps_out_of_line_are_stalls(job):
    rows = [row(step, 4.0 * step, work=2.0 if step % 10 else 3.5) for step in range(1, 41)]
    assert goodput(job, {0: rows}).parts["stall"] == 6 * S


def test_a_step_of_ten_years_is_left_out(job):
    rows = [row(step, 4.0 * step, work=4.0) for step in range(1, 5)]
    damaged = rows[-1] | {"dur_ns": 10 * 365 * 24 * 3600 * S}
    assert goodput(job, {0: [*rows[:-1], damaged]}).wall_ns == goodput(job, {0: rows[:-1]}).wall_ns


@pytest.mark.parametrize("seed", range(5))
def test_it_adds_up_whatever_the_clocks_say(job, seed):
    """Steps overlap, go back in time, or have phases longer than themselves."""
    rng = random.Random(seed)
    rows = {
        rank: [
            {
                "step": rng.randrange(1, 30),
                "start_ns": BASE + rng.randrange(40 * S),
                "dur_ns": rng.randrange(-S, 3 * S),
                "phases": {name: rng.randrange(S) for name in ("fwd", "data_wait", "ckpt_save", "gc")},
                "tags": [],
            }
            for _ in range(40)
        ]
        for rank in range(3)
    }
    simulated = job(ranks=3, device="cuda")
    simulated.rows = rows
    loaded = load(simulated.written(), store.Options())
    table = goodput_by_rank(loaded, lateness(loaded))
    assert list(table) == list(PARTS)
    assert (table.to_numpy() >= 0).all()
    found = steps.analyze(simulated.written()).data.goodput
    assert set(table.sum(axis=1)) == {found.wall_ns}
    assert sum(found.parts.values()) == found.wall_ns


@pytest.mark.parametrize("seed", range(20))
def test_quotients_that_add_up(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 600))
    rows = rng.multinomial(10**12, rng.dirichlet(np.ones(6)), size=count)
    quotients = divided(rows.sum(axis=0).tolist(), count)
    assert sum(quotients) == 10**12
    assert np.abs(np.array(quotients) - rows.mean(axis=0)).max() < 1


def test_parts_that_cost_too_much(job):
    """The loader takes a third of each step, and saving takes 15 % of the run."""
    simulated = job(ranks=2, device="cuda")
    simulated.rows = {
        rank: [row(step, 4.0 * step, work=2.0, data_wait=1.0) for step in range(1, 31)] for rank in (0, 1)
    }
    report = steps.analyze(simulated.written())
    assert (report.verdict.kind, report.verdict.ranks) == ("data_time", [0, 1])
    assert "33 % of the time of a step: 1.00 s per step" in report.verdict.sentence
    saving = [row(step, 4.0 * step, work=3.0, ckpt_save=0.7) for step in range(1, 31)]
    simulated.rows = {0: saving, 1: saving}
    (found,) = steps.analyze(simulated.written()).findings
    assert found.id == "steps.checkpoint_time"
    assert "16 % of the time of the run: 21.0 s in total" in found.title


def test_restarts_that_cost_too_much(job):
    header = {"schema": "workbench.steps/1", "rank": 0, "world_size": 1}
    attempts = [row(step, 10.0 * step, work=9.9) for step in range(1, 41)]
    again = [row(step, 600.0 + 10.0 * step, work=9.9) for step in range(31, 61)]
    simulated = job(ranks=1, device="cuda")
    simulated.rows = {0: [*attempts, header, *again]}
    report = steps.analyze(simulated.written())
    assert report.verdict.kind == "restart_time"
    assert report.data.goodput.parts["redone"] == 10 * 99 * S // 10
