"""Ranks under torchrun whose collectives timed out: the line of each, and ranks that printed nothing."""

import pytest

from analyzers import logs, run

GAVE_UP = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/train.py", line {line}, in {function}
[rank{rank}]:     {code}
[rank{rank}]:   File "/venv/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank{rank}]:     return func(*args, **kwargs)
[rank{rank}]:   File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252, in {operation}
[rank{rank}]:     work.wait()
[rank{rank}]: RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 10000ms for {half} operation to complete
"""


@pytest.fixture
def said(tmp_path):
    """Fixture: a function from (function, line, operation) of each timed-out rank, or None, to the verdict on its
    logs.
    """

    def verdict(*places, half="recv"):
        for rank, place in enumerate(places):
            folder = tmp_path / "logs" / "job_x1" / "attempt_0" / str(rank)
            folder.mkdir(parents=True)
            text = ""
            if place:
                function, line, operation, *code = place
                names = {"rank": rank, "function": function, "line": line, "operation": operation, "half": half}
                text = GAVE_UP.format(code=code[0] if code else f"dist.{operation}(x)", **names)
            (folder / "stderr.log").write_text(text)
            (folder / "stdout.log").write_text("")
        return logs.analyze(run.discover(tmp_path)).verdict

    return verdict


SAVE, STEP = ("save", 43, "all_gather"), ("train", 36, "all_reduce")


def test_the_rank_at_another_line_is_the_odd_one(said):
    verdict = said(SAVE, STEP, STEP)
    assert (verdict.kind, verdict.ranks) == ("mismatch", [0])
    assert verdict.sentence.startswith(
        "Rank 0 took a different branch than the others, or left a loop earlier: rank 0 waits in"
    )
    assert "me/train.py:43" in verdict.sentence
    assert "me/train.py:36" in verdict.sentence


def test_two_sides_of_equal_size_leave_it_open(said):
    verdict = said(SAVE, SAVE, STEP, STEP)
    assert (verdict.kind, verdict.ranks) == ("mismatch", [])


def test_the_root_of_a_gather_may_wait_for_a_rank_that_left_it_out(said):
    assert said(("save", 43, "gather"), STEP, STEP, STEP).ranks == []


def test_a_rank_that_waits_to_receive_in_a_broadcast_shows_that_the_odd_one_did_not_come(said):
    share = ("share", 20, "broadcast")
    assert said(share, share, STEP).ranks == [2]


def test_a_rank_beyond_the_broadcast_of_the_others_may_have_received_its_part(said):
    share = ("share", 20, "broadcast")
    verdict = said(share, share, STEP, half="send")
    assert (verdict.kind, verdict.ranks) == ("mismatch", [])


def test_a_rank_in_a_message_waits_at_a_line_of_its_own(said):
    assert said(("stage", 50, "recv"), STEP, STEP).ranks == []


def test_a_worker_that_printed_nothing_is_the_one_that_did_not_come(said):
    verdict = said(STEP, None, STEP)
    assert (verdict.kind, verdict.ranks) == ("collective_timeout", [1])


def test_of_two_ranks_that_disagree_both_are_named(said):
    verdict = said(SAVE, STEP)
    assert (verdict.kind, verdict.ranks) == ("mismatch", [0, 1])


def test_most_ranks_that_printed_nothing_are_not_blamed(said):
    verdict = said(STEP, None, None)
    assert (verdict.kind, verdict.ranks) == ("collective_timeout", [])
    assert "what the other ranks did is not shown" in verdict.sentence


@pytest.mark.parametrize(
    ("places", "ranks"),
    [
        ([STEP, STEP, ("work", 25, "recv", "dist.recv(command, src=0)")], [0]),
        ([STEP, STEP, ("work", 25, "recv", "dist.recv(command, src=rank - 1)")], [1]),
        ([STEP, ("work", 25, "recv", "dist.recv(command, 0)"), STEP], [0]),
        ([STEP, STEP, ("work", 25, "recv", "dist.recv(command, src=(rank + 1) % world)")], []),
        ([("a", 9, "send", "dist.send(x, dst=1)"), ("b", 10, "send", "dist.send(x, dst=0)")], [0, 1]),
        ([("a", 9, "send", "dist.send(x, peer)"), ("b", 10, "send", "dist.send(x, peer)")], [0, 1]),
        ([("a", 9, "recv", "dist.recv(x, src=rank + 1)")] * 2 + [("b", 10, "send", "dist.send(x, dst=1)")], [1, 2]),
    ],
)
def test_messages_that_do_not_meet_lead_to_who_did_not_issue_the_other_half(said, places, ranks):
    verdict = said(*places)
    assert (verdict.kind, verdict.ranks) == ("unmatched_p2p", ranks)
    assert all(f"me/train.py:{line}" in verdict.sentence for _, line, *_ in places)


def test_a_command_that_failed_is_no_failure_of_the_rank(tmp_path):
    log = tmp_path / "logs" / "job_x1" / "attempt_0" / "0" / "stderr.log"
    log.parent.mkdir(parents=True)
    trace = 'Traceback (most recent call last):\n  File "{}", line 1, in <module>\nRuntimeError: no git repository\n'
    log.write_text(trace.format("<string>"))
    assert logs.analyze(run.discover(tmp_path)).verdict.status == "unknown"
    log.write_text(trace.format("/home/me/train.py"))
    assert logs.analyze(run.discover(tmp_path)).verdict.kind == "crashed"


def test_a_rank_that_the_launcher_never_started_is_a_failed_start(tmp_path):
    for rank in range(2):
        log = tmp_path / "logs" / "job_x1" / "attempt_0" / str(rank) / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(
            'Traceback (most recent call last):\n  File "/home/me/train.py", line 26, in <module>\n'
            '  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 1899, in init_process_group\n'
            "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/2\n"
        )
    report = logs.analyze(run.discover(tmp_path))
    verdict = report.verdict
    assert (verdict.kind, verdict.ranks) == ("startup", [])
    assert "Rank 2 never joined init_process_group (me/train.py:26)" in verdict.sentence
    assert report.findings[0].why.startswith("All ranks that the logs show wait for the missing ones")


def test_a_rank_that_trained_is_not_still_preparing_its_data(tmp_path):
    """Its steps may stand in another file than the error, as those of torchtitan do."""
    for rank in (0, 1):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        steps = [
            f"[titan] 2026-11-29 12:39:0{step} - root - INFO - step: {step} loss: 7.9 grad_norm: 3.2" for step in (1, 2)
        ]
        (folder / "stdout.log").write_text("\n".join(["Preparing c4_test dataset from corpus", *steps]) + "\n")
    (tmp_path / "attempt_0" / "0" / "stderr.log").write_text(
        "Generating train split: 300 examples [00:00, 9000.0 examples/s]\n"
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 45, in step\n'
        '  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n'
        "RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 40000ms for recv operation to complete\n"
    )
    verdict = logs.analyze(tmp_path).verdict
    assert verdict.kind == "collective_timeout"
    assert verdict.failure != "collectives.preparation"
