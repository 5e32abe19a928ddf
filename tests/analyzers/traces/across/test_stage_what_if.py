"""What a pipeline would save if one of its stages computed as fast as the others, and when this is unknown."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analyzers import run, traces
from analyzers.traces.rank_waits import Change
from analyzers.traces.stages import Message, UnknownStages, chains_of_peers
from benchmarks.traced_job import US, Fault
from benchmarks.what_if.pipeline_job import Pipeline, write_job
from benchmarks.what_if.traces import ERROR_AT_MOST, STAGE_CASES, error_of_stage, steps_ns
from workbench.cli import app

STEPS = 2
SLOW = [Fault(4, 2.0), Fault(5, 2.0)]
SIX_RANKS = Pipeline((1, 1, 1), replicas=2, microbatches=4)


def analyse(folder):
    return traces.analyze(run.discover(folder).of(run.Kind.TRACE)).data


@pytest.mark.parametrize("case", STAGE_CASES, ids=lambda case: case.name)
def test_a_prediction_is_the_time_of_the_job_without_the_slow_stage(case):
    assert abs(error_of_stage(case, STEPS)) < ERROR_AT_MOST


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_the_stage_is_named_with_its_ranks(tmp_path, described, fused):
    job = Pipeline((1, 1, 1), replicas=2, microbatches=4, described=described, fused=fused)
    write_job(tmp_path, job, STEPS, SLOW)
    [answer] = analyse(tmp_path).what_ifs
    assert (answer.change, answer.stage, answer.ranks) == (Change.STAGE_AS_OTHERS, 2, [4, 5])
    assert (answer.steps, answer.rank) == (STEPS, None)


def test_clocks_that_are_apart_change_nothing(tmp_path):
    write_job(tmp_path / "together", SIX_RANKS, STEPS, SLOW)
    write_job(tmp_path / "apart", SIX_RANKS, STEPS, SLOW, offset=7_000_000 * US)
    together, apart = (analyse(tmp_path / name).what_ifs[0] for name in ("together", "apart"))
    assert (apart.stage, apart.ranks) == (together.stage, together.ranks)
    assert apart.saved_ns == pytest.approx(together.saved_ns, rel=0.01)


def test_equal_stages_have_nothing_to_save(tmp_path):
    write_job(tmp_path, SIX_RANKS, STEPS)
    data = analyse(tmp_path)
    assert (data.what_ifs, data.stages_unknown) == ([], "")


def test_text_and_json_tell_the_saving(tmp_path):
    write_job(tmp_path / "slow", SIX_RANKS, STEPS, SLOW)
    write_job(tmp_path / "equal", SIX_RANKS, STEPS)
    text = CliRunner().invoke(app, ["trace", str(tmp_path / "slow")]).stdout
    assert "stage 2 (ranks 4-5) computes as fast as the others" in text
    [row] = json.loads(CliRunner().invoke(app, ["trace", str(tmp_path / "slow"), "--json"]).stdout)["data"]["what_ifs"]
    saved_a_step = (steps_ns(analyse(tmp_path / "slow")) - steps_ns(analyse(tmp_path / "equal"))) / STEPS
    assert row["saved_ns"] / row["steps"] == pytest.approx(saved_a_step, rel=0.05)
    assert (row["stage"], row["ranks"]) == (2, [4, 5])


def without_peers(folder):
    for path in folder.glob("*.json"):
        path.write_text(re.sub(r', "(Dst|Src) Rank": \d+', "", path.read_text()))


def without_rank_2(folder):
    (folder / "rank2_trace.json").unlink()


def without_the_first_send(folder):
    path = folder / "rank0_trace.json"
    path.write_text(re.sub(r'"Collective name": "send"', '"Collective name": "lost"', path.read_text(), count=1))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (without_peers, "the peers of its sends and receives are not recorded"),
        (without_rank_2, "there is no trace of rank 2"),
        (without_the_first_send, "rank 0 recorded 3 sends to rank 2 in a step, which recorded 4 receives"),
    ],
)
def test_stages_that_cannot_be_found_are_unknown(tmp_path, damage, reason):
    write_job(tmp_path, SIX_RANKS, STEPS, SLOW)
    damage(tmp_path)
    data = analyse(tmp_path)
    assert reason in data.stages_unknown
    assert not [answer for answer in data.what_ifs if answer.change == Change.STAGE_AS_OTHERS]
    assert "a pipeline stage computes as fast as the others: unknown" in " ".join(
        CliRunner().invoke(app, ["trace", str(tmp_path)]).stdout.split()
    )


def test_clocks_without_collectives_are_unknown(tmp_path):
    write_job(tmp_path, Pipeline((1, 1), microbatches=4, norm=False), STEPS, [Fault(1, 2.0)], offset=7_000_000 * US)
    assert "no collective shows how far the clock of rank 0" in analyse(tmp_path).stages_unknown


def test_peers_of_two_ranks_follow_from_the_group(tmp_path):
    write_job(tmp_path, Pipeline((1, 1), microbatches=4), STEPS, [Fault(1, 2.0)])
    without_peers(tmp_path)
    [answer] = analyse(tmp_path).what_ifs
    assert (answer.stage, answer.ranks) == (1, [1])


def test_sends_and_receives_are_not_matched_as_collectives(tmp_path):
    write_job(tmp_path, Pipeline((1, 1), microbatches=4, fused=False), STEPS)
    assert {meeting.name for meeting in analyse(tmp_path).meetings} == {"allreduce"}


@pytest.mark.parametrize("slow", [[], [Fault(2, 2.0)]])
def test_a_stage_that_ends_last_is_no_straggler(tmp_path, slow):
    # Stage 0 computes the last backward pass of a step, so it always arrives last at the collective after it.
    write_job(tmp_path, Pipeline((2, 2, 2, 2), microbatches=8), STEPS, slow)
    assert [late.rank for late in analyse(tmp_path).stragglers] in ([], [fault.rank for fault in slow])


def train_on_gloo(folder, slow):
    script = Path(__file__).parents[4] / "benchmarks" / "what_if" / "gloo_pipeline.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", script]
    subprocess.run([*command, folder, str(slow)], check=True, timeout=120, capture_output=True)
    return analyse(folder)


@pytest.mark.slow
def test_a_real_pipeline_on_gloo(tmp_path):
    slow, healthy = train_on_gloo(tmp_path / "slow", 1), train_on_gloo(tmp_path / "healthy", -1)
    answer = slow.what_ifs[0]
    assert (answer.stage, answer.ranks) == (1, [1])
    # The steps of three processes scatter by some per cent; the slow stage costs half of the healthy step.
    assert steps_ns(slow) - answer.saved_ns == pytest.approx(steps_ns(healthy), rel=0.15)
    assert steps_ns(slow) > 1.3 * steps_ns(healthy)


def messages(*peers):
    """Return messages to and from `peers`; a negative peer (-1 for rank 0) is sent to, others are received from."""
    return [Message(i, ~peer if peer < 0 else peer, peer < 0) for i, peer in enumerate(peers)]


def chains(messages_of):
    return chains_of_peers(messages_of, {rank: {one.peer for one in own} for rank, own in messages_of.items()})


def test_a_chain_begins_where_something_is_sent_first():
    assert chains({0: messages(2, ~2), 2: messages(3, ~0, 0, ~3), 3: messages(~2, 2)}) == [(3, 2, 0)]


@pytest.mark.parametrize(
    ("messages_of", "reason"),
    [
        ({0: messages(~1, 1), 1: messages(~0, 0)}, "ranks 0 and 1 both begin with a send"),
        ({0: messages(~1, 2), 1: messages(~2, 0), 2: messages(~0, 1)}, "join the ranks to no chains"),
        (
            {0: messages(~1), 1: messages(0, ~2, ~3), 2: messages(1), 3: messages(1)},
            "rank 1 sends to or receives from 3 ranks",
        ),
    ],
)
def test_other_forms_than_chains_are_unknown(messages_of, reason):
    with pytest.raises(UnknownStages, match=reason):
        chains(messages_of)
