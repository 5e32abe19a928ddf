"""Ranks of one node under torchrun that gave up waiting: at which line each did, and who printed nothing."""

import pytest

from analyzers import logs, run

GAVE_UP = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/train.py", line {line}, in {function}
[rank{rank}]:     {code}
[rank{rank}]:   File "/venv/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank{rank}]:     return func(*args, **kwargs)
[rank{rank}]:   File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252, in {operation}
[rank{rank}]:     work.wait()
[rank{rank}]: RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete
"""


@pytest.fixture
def said(tmp_path):
    """The verdict on the logs of ranks that gave up at (function, line, operation), or printed nothing."""

    def verdict(*places):
        for rank, place in enumerate(places):
            folder = tmp_path / "logs" / "job_x1" / "attempt_0" / str(rank)
            folder.mkdir(parents=True)
            text = ""
            if place:
                function, line, operation = place
                names = {"rank": rank, "function": function, "line": line, "operation": operation}
                text = GAVE_UP.format(code=f"dist.{operation}(x)", **names)
            (folder / "stderr.log").write_text(text)
            (folder / "stdout.log").write_text("")
        return logs.analyze(run.discover(tmp_path)).verdict

    return verdict


SAVE, STEP = ("save", 43, "all_gather"), ("train", 36, "all_reduce")


def test_the_rank_at_another_line_is_the_odd_one(said):
    verdict = said(SAVE, STEP, STEP)
    assert (verdict.kind, verdict.ranks) == ("mismatch", [0])
    assert verdict.sentence.startswith("rank 0 took another branch than the others, or left a loop earlier: rank 0 in")
    assert "me/train.py:43" in verdict.sentence
    assert "me/train.py:36" in verdict.sentence


def test_two_sides_of_equal_size_leave_it_open(said):
    verdict = said(SAVE, SAVE, STEP, STEP)
    assert (verdict.kind, verdict.ranks) == ("mismatch", [])


def test_the_root_of_a_gather_may_wait_for_a_rank_that_left_it_out(said):
    assert said(("save", 43, "gather"), STEP, STEP, STEP).ranks == []


def test_a_rank_in_a_message_waits_at_a_line_of_its_own(said):
    assert said(("stage", 50, "recv"), STEP, STEP).ranks == []


def test_a_worker_that_printed_nothing_is_the_one_that_did_not_come(said):
    verdict = said(STEP, None, STEP)
    assert (verdict.kind, verdict.ranks) == ("collective_timeout", [1])
