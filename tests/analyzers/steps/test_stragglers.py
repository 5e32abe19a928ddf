"""Find stragglers: which rank is late, why and how often, compared with the simulation and a slow computation."""

import json
import random
import re
import statistics

import pytest

from analyzers import run, steps, store
from analyzers.steps.lateness import lateness
from analyzers.steps.loading import load

PHASES = {"compute": "fwd", "data": "data_wait", "gc": "gc", "logging": "log"}


def found(artefacts):
    report = steps.analyze(artefacts)
    return report, {s.rank: s for s in report.data.stragglers}


@pytest.mark.parametrize("seed", range(12))
def test_planted_stragglers(job, seed):
    """Rank, cause, clock and mesh are random; only lateness that the clock can show must be found."""
    rng = random.Random(seed)
    ranks, culprit = (n := rng.choice([2, 3, 4, 16])), rng.randrange(n)
    device = rng.choice(["cpu", "cuda"])
    meets = rng.choice([("bwd",), ("fwd", "bwd")])
    causes = list(PHASES) if device == "cpu" or "fwd" not in meets else ["data", "gc", "logging"]
    cause, first = rng.choice(causes), rng.randrange(2, 25)
    late_ms = rng.uniform(50, 90) if device == "cpu" else rng.uniform(10, 40)
    artefacts = job(ranks=ranks, device=device, meets=meets, seed=seed).run(
        lambda rank, step: {PHASES[cause]: late_ms} if rank == culprit and step >= first else {}
    )
    report, late = found(artefacts)
    assert (report.verdict.kind, report.verdict.ranks) == ("straggler", [culprit])
    one = late[culprit]
    assert (one.cause, one.first_step, one.pattern, one.last_step) == (cause, first, "persistent", 40)
    assert one.steps_late == 41 - first
    assert one.lateness_s == pytest.approx(late_ms / 1e3, abs=0.004)
    assert one.lost_s == pytest.approx(late_ms / 1e3 * (41 - first) / 39, abs=0.004)


def test_the_evidence_compares_the_phase_that_takes_longer_with_that_of_the_other_ranks(job):
    report, _ = found(job(ranks=3).run(lambda rank, step: {"log": 60.0} if rank == 1 and step >= 9 else {}))
    [finding] = [finding for finding in report.findings if finding.id == "steps.straggler"]
    texts = [fact.text for fact in finding.evidence]
    compared = r"logging takes 6\d\.\d ms a step on rank 1, \S+ \S+ on the other ranks \(medians of steps 9-40\)"
    assert re.fullmatch(compared, texts[-1])


def test_the_evidence_has_the_measured_times_of_steps_with_and_without_the_straggler(job):
    slow = job(ranks=3, device="cpu").run(lambda rank, step: {"fwd": 60.0} if rank == 1 and step >= 9 else {})
    report, late = found(slow)
    [finding] = [finding for finding in report.findings if finding.id == "steps.straggler"]
    took, latest, compute = [fact.text for fact in finding.evidence[1:]]
    with_ms, without_ms = map(float, re.findall(r"takes (\d+) ms.* not late (\d+\.?\d*) ms", took)[0])
    assert with_ms - without_ms == pytest.approx(60, abs=4)
    assert latest.startswith("the steps in which rank 1 is latest: step ")
    assert latest.count("late by 6") == 5
    assert re.match(r"compute \(processor time\) takes \d+ ms a step on rank 1, \d+\.?\d* ms on the other", compute)
    steps_of = [step.step for step in late[1].latest]
    assert steps_of == sorted(steps_of)


def test_the_evidence_of_a_rank_that_is_late_now_and_then_is_about_its_latest_steps(job):
    report, late = found(job(ranks=3).run(lambda rank, step: {"log": 90.0} if rank == 1 and step % 4 == 0 else {}))
    assert late[1].pattern == "recurring"
    [finding] = [finding for finding in report.findings if finding.id == "steps.straggler"]
    assert re.match(r"logging takes 9\d\.\d ms a step on rank 1", finding.evidence[-1].text)
    assert finding.evidence[-1].text.endswith("(averages over these steps)")
    assert all(late_step.step % 4 == 0 for late_step in late[1].latest)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("seed", range(8))
def test_nobody_is_late_in_a_healthy_run(job, device, seed):
    report, late = found(job(ranks=2 + seed, device=device, noise=0.05, seed=seed).run())
    assert (report.verdict.kind, late) == ("healthy", {})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("more_ms", "late"), [(40, False), (400, True)])
def test_garbage_that_all_collect_at_once_takes_none_equally_long(job, device, more_ms, late):
    """In every fifth step all ranks collect garbage for 400 ms, and one of them a tenth longer, or twice as long."""
    artefacts = job(device=device).run(
        lambda rank, step: {"gc": 400.0 + more_ms * (rank == 2)} if step % 5 == 0 else {},
        tags=lambda _, step: ["first"] if step == 1 else ["gc"] if step % 5 == 0 else [],
    )
    report, _ = found(artefacts)
    assert [(slow.rank, slow.cause) for slow in report.data.stragglers] == ([(2, "gc")] if late else [])


def test_the_lateness_against_a_slow_oracle(job):
    simulated = job(ranks=5, noise=0.3, seed=4)
    seen = lateness(load(simulated.run(), store.Options()))
    for step, ranks in simulated.work.items():
        if step == 1:
            continue
        sums = [sum(local.values()) for local in ranks]
        for rank, total in enumerate(sums):
            assert seen.excess.loc[step, rank] == pytest.approx((total - statistics.median_low(sums)) / 1e3, abs=1e-6)
        waits = [local["data_wait"] + local["h2d"] for local in ranks]
        for rank, wait in enumerate(waits):
            expected = (wait - statistics.median_low(waits)) / 1e3
            assert seen.by_cause["data"].loc[step, rank] == pytest.approx(expected, abs=1e-6)


def test_by_arrival_against_a_slow_oracle(job):
    """A rank's lateness is how far it is behind the others at the end of the phase where this is most."""
    simulated = job(ranks=3, noise=0.3, seed=5, device="cuda", meets=("fwd", "bwd"))
    seen = lateness(load(simulated.run(), store.Options()))
    for step in range(2, 41):
        rows = [simulated.rows[rank][step - 1]["phases"] for rank in range(3)]
        for rank in range(3):
            late, reached = 0, [0] * 3
            for phase in rows[0]:
                reached = [so_far + row[phase] for so_far, row in zip(reached, rows, strict=True)]
                late = max(late, reached[rank] - statistics.median_low(reached))
            assert seen.excess.loc[step, rank] == pytest.approx(late / 1e9, abs=1e-9)


def test_who_waits_in_a_sharded_forward_is_not_blamed(job):
    """There are two ranks: the victim's forward takes longer by exactly the time that the culprit loads data longer."""
    more = {"data_wait": 40.0}
    _, late = found(job(ranks=2, device="cuda", meets=("fwd", "bwd")).run(lambda rank, _: more if rank == 0 else {}))
    assert {rank: one.cause for rank, one in late.items()} == {0: "data"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_now_and_then(job, device):
    report, late = found(
        job(device=device, steps=60).run(lambda rank, step: {"gc": 120.0} if rank == 2 and step % 5 == 0 else {})
    )
    assert (late[2].pattern, late[2].cause, late[2].steps_late, len(late)) == ("recurring", "gc", 12, 1)
    assert "in some steps from step 5 on: " in report.verdict.sentence
    assert "the extra time is garbage collection" in report.verdict.sentence


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_in_turns(job, device):
    """Each rank collects garbage in other steps: there is one finding, not one per rank."""
    report, late = found(
        job(device=device, steps=60).run(lambda rank, step: {"gc": 120.0} if step % 8 == 2 * rank else {})
    )
    assert {one.pattern for one in late.values()} == {"rotating"}
    assert sorted(late) == report.verdict.ranks == [0, 1, 2, 3]
    assert [f.id for f in report.findings] == ["steps.straggler"]
    assert "in turns" in report.verdict.sentence


def test_a_whole_machine(job):
    simulated = job(ranks=6, device="cuda")
    simulated.hosts = ["a", "a", "b", "b", "c", "c"]
    report, late = found(simulated.run(lambda rank, _: {"fwd": 30.0} if rank in (2, 3) else {}))
    assert {rank: one.pattern for rank, one in late.items()} == {2: "host", 3: "host"}
    assert report.verdict.ranks == [2, 3]
    assert "Ranks 2-3 (all of host b)" in report.verdict.sentence


def test_a_straggler_of_the_last_hundred_steps_of_many(job):
    _, late = found(
        job(steps=600, device="cuda").run(lambda rank, step: {"fwd": 25.0} if rank == 1 and step > 500 else {})
    )
    assert (late[1].first_step, late[1].steps_late, list(late)) == (501, 100, [1])


def test_a_log_that_cannot_tell_who_is_late_says_so(tmp_path):
    line = "[rank{}]:[titan] 2026-01-01 10:00:{:02},000 - root - INFO - step:  {}  loss:  8.0  tps: 100\n"
    text = "".join(line.format(rank, step, step) for step in range(1, 31) for rank in (0, 1))
    (tmp_path / "job.log").write_text(text)
    report = steps.analyze(run.discover(tmp_path).artefacts)
    assert report.verdict.kind == "healthy"
    assert "is late" not in report.verdict.sentence
    assert any("which rank is late" in lack for lack in report.verdict.missing)


def test_titans_logs_name_the_late_loader(tmp_path):
    for rank in range(3):
        records = []
        for step in range(1, 31):
            wait = 60.0 if rank == 1 else 5.0
            spans = [("fetching_batch", wait), ("fwd_bwd", 160.0 - wait), ("optim", 10.0), ("step", 175.0)]
            base = {"global_rank": rank, "step": step, "time_us": step * 175_000, "log_type": "event"}
            records += [base | {"log_type_name": f"{name}_end", "value": ms} for name, ms in spans]
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"training.global_rank_{rank}.20260504-101010-abc.jsonl").write_text(text)
    report, late = found(run.discover(tmp_path).artefacts)
    assert (report.verdict.ranks, late[1].cause, late[1].lateness_s) == ([1], "data", pytest.approx(0.055))


@pytest.mark.parametrize("begin", [2, 7, 21, 40])
def test_the_begin_is_dated_to_the_step_though_the_lateness_varies(job, begin):
    chance = random.Random(begin)
    extra = {step: 60 * (1 + 0.3 * chance.gauss(0, 1)) for step in range(61)}
    report = steps.analyze(
        job(ranks=4, steps=60, noise=0.05).run(
            lambda rank, step: {"data_wait": extra[step]} if rank == 1 and step >= begin else {}
        )
    )
    (straggler,) = report.data.stragglers
    assert straggler.rank == 1
    # Nothing before step 2 can be compared: a rank that is late from there on is late from the start.
    assert straggler.first_step == (1 if begin == 2 else begin)


def in_own_code(rank, extra, begin=1, noise=None):
    """Return extra work of a rank between its phases, which lengthens its residual; the others wait in their
    backward pass.
    """

    def residual(own, step):
        late = extra if own == rank and step >= begin else 0.0
        return round((late + (noise.get((own, step), 0.0) if noise else 0.0) + 1.0) * 1_000_000)

    return residual


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_sleeps_in_its_own_code_is_a_straggler(job, ranks):
    simulated = job(ranks=ranks, steps=50)
    report = steps.analyze(simulated.run(residual_ns=in_own_code(1, 80.0, begin=21)))
    (straggler,) = report.data.stragglers
    assert (straggler.rank, straggler.first_step, straggler.cause) == (1, 21, "unrecorded")


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_waits_in_its_own_code_is_none(job, ranks):
    """In a sharded forward pass that is not recorded, all others wait for the rank that computes longer."""
    simulated = job(ranks=ranks, steps=50)

    def residual(rank, step):
        return 1_000_000 if rank == 0 else 81_000_000

    report = steps.analyze(simulated.run(lambda rank, step: {"fwd": 80.0 * (rank == 0)}, residual_ns=residual))
    assert [(s.rank, s.cause) for s in report.data.stragglers] == [(0, "compute")]


def test_slices_lost_now_and_then_are_no_stragglers(job):
    chance = random.Random(1)
    noise = {(rank, step): 60.0 * (chance.random() < 0.2) for rank in range(4) for step in range(1, 121)}
    simulated = job(ranks=4, steps=120)
    report = steps.analyze(simulated.run(residual_ns=in_own_code(0, 0.0, noise=noise)))
    assert report.data.stragglers == []


@pytest.mark.parametrize(
    ("late_in", "is_found"), [(range(100, 112), False), (range(100, 140), True), (range(589, 601), True)]
)
def test_a_rank_that_cost_less_than_a_hundredth_of_the_time_is_no_straggler(job, late_in, is_found):
    """Twelve late steps of 600 cost 0.7 %; a rank that is late up to the end may be late from now on."""
    artefacts = job(ranks=3, steps=600).run(lambda rank, step: {"fwd": 40.0} if rank == 1 and step in late_in else {})
    _, late = found(artefacts)
    assert set(late) == ({1} if is_found else set())
