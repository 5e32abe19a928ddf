"""Errors that a job printed but survived, distinguished from errors that ended it."""

import json

import pytest

from analyzers import incident, logs, run

CAUGHT = (
    'Traceback (most recent call last):\n  File "/home/me/data.py", line {line}, in read\nValueError: sample {line}\n'
)
LOST = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/train.py", line 36, in step
[rank{rank}]:   File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank{rank}]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:16542
"""
TIMED_OUT = LOST.replace("pair.cc:553] Connection closed by peer [127.0.0.1]:16542",
                         "unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete")  # fmt: skip
FAILED = "E1122 12:10:12.569000 6723 api.py:1002] failed (exitcode: 1) local_rank: {rank} (pid: 6{rank}) of binary: x\n"
STACK = """Timeout (0:00:06)!
Thread 0x00007f29 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Thread 0x00007efd (most recent call first):
{frames}  File "/home/me/train.py", line 37 in <module>
"""
WAITS = """  File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 30 in main
"""
READS = '  File "/home/me/train.py", line 22 in read\n  File "/home/me/train.py", line 29 in main\n'


@pytest.fixture
def job(tmp_path):
    """Fixture: a function that writes the folder of a job under torchrun, given the stderr of each rank."""

    def write(*stderr, stdout="", launcher=""):
        for rank, text in enumerate(stderr):
            folder = tmp_path / "logs" / "job_x1" / "attempt_0" / str(rank)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "stderr.log").write_text(text)
            (folder / "stdout.log").write_text(stdout)
        (tmp_path / "torchrun.log").write_text(launcher)
        return run.discover(tmp_path)

    return write


def test_tracebacks_that_a_process_prints_one_after_another_did_not_end_it(job):
    text = CAUGHT.format(line=3) + CAUGHT.format(line=9) + CAUGHT.format(line=3)
    report = logs.analyze(job(text, text, stdout="done\n"))
    assert (report.verdict.kind, report.verdict.ranks) == ("healthy", [])
    assert [f.id for f in report.findings] == []


MEMORY = """{before}Traceback (most recent call last):
  File "/home/me/tune.py", line 9, in tune
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
"""


@pytest.mark.parametrize("before", ["ERROR:root:ignoring the choice BLOCK=256\n", ""])
def test_a_lack_of_memory_before_the_last_word_of_its_rank_was_caught(job, before):
    text = MEMORY.format(before=before)
    report = logs.analyze(job(text, text, stdout="step 7 loss 0.2\ndone\n"))
    assert (report.verdict.kind, report.verdict.ranks) == ("healthy", [])
    assert not [f for f in report.findings if f.severity == "error"]


def test_a_lack_of_memory_without_a_last_word_is_the_failure_and_told_once(job):
    report = logs.analyze(job(MEMORY.format(before=""), "", stdout="step 7 loss 0.2\n"))
    assert (report.verdict.kind, report.verdict.ranks) == ("oom", [0])
    [finding] = [f for f in report.findings if f.severity == "error"]
    assert [fact.line for fact in finding.evidence] == ["/home/me/tune.py:9"]


def test_a_step_after_a_traceback_shows_that_the_job_went_on(job):
    report = logs.analyze(job(f"step 1\n{CAUGHT.format(line=3)}step 2\n"))
    assert report.verdict.kind == "unknown"
    [finding] = report.findings
    assert (finding.id, finding.severity) == ("logs.handled_errors", "info")
    assert "ValueError: sample 3 in read (me/data.py:3)" in finding.title


def test_a_traceback_beside_steps_of_which_nothing_follows_is_neither_an_error_nor_healthy(job):
    report = logs.analyze(job(CAUGHT.format(line=3), "", stdout="step 7 loss 0.3\n"))
    assert (report.verdict.status, report.verdict.ranks) == ("unknown", [])
    assert "ValueError: sample 3 in read (me/data.py:3)" in report.verdict.sentence
    # What may have been caught is not called the cause.
    assert "cause" not in report.findings[0].why
    assert "exit code of the job" in report.findings[0].next


def test_the_same_traceback_is_a_crash_where_the_launcher_says_that_the_rank_failed(job):
    found = job(CAUGHT.format(line=3), "", stdout="step 7 loss 0.3\n", launcher=FAILED.format(rank=0))
    assert (logs.analyze(found).verdict.kind, logs.analyze(found).verdict.ranks) == ("crashed", [0])


def test_the_hook_of_pytorch_prints_only_what_nothing_caught(job):
    text = "".join(f"[rank1]: {line}\n" for line in CAUGHT.format(line=3).splitlines())
    assert logs.analyze(job("", text + "step 8\n", stdout="step 7 loss 0.3\n")).verdict.kind == "crashed"


def test_a_rank_that_skips_a_batch_and_ends_early_left_out_its_collectives(job):
    warning = "WARNING:root:batch 7 is broken, skipping it: index 1000 is out of bounds\n"
    report = logs.analyze(job(LOST.format(rank=0), warning, LOST.format(rank=2)))
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [1])
    assert "train.py:36" in report.verdict.sentence
    assert "batch 7 is broken" in report.verdict.sentence


def test_memory_that_a_rank_lacked_for_one_batch_did_not_end_it(job):
    cannot = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1024 bytes."
    warning = f"12:01 | WARNING | out of memory, skipping the batch: {cannot}\n"
    verdict = logs.analyze(job(LOST.format(rank=0), warning, LOST.format(rank=2))).verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", [1])


def test_the_exception_of_a_thread_explains_a_rank_that_does_not_join(job):
    thread = "Exception in thread Thread-1 (produce):\n" + CAUGHT.format(line=22)
    report = logs.analyze(job(TIMED_OUT.format(rank=0), thread, TIMED_OUT.format(rank=2)))
    assert (report.verdict.kind, report.verdict.ranks) == ("collective_timeout", [1])
    assert "Thread Thread-1 (produce) of rank 1 reported before: ValueError: sample 22" in report.findings[0].why


def test_stacks_of_a_timer_name_the_rank_that_is_elsewhere(job):
    waits, reads = STACK.format(frames=WAITS), STACK.format(frames=READS)
    launcher = "".join(FAILED.format(rank=rank) for rank in range(3))
    verdict = logs.analyze(job(waits, reads, waits, launcher=launcher)).verdict
    assert (verdict.kind, verdict.ranks) == ("collective_timeout", [1])
    assert verdict.sentence.startswith("Rank 1 was in read (me/train.py:22), while ranks 0, 2 waited in all_reduce")


def test_stacks_of_a_timer_alone_are_no_failure(job):
    found = job(STACK.format(frames=WAITS), STACK.format(frames=READS), stdout="step 9 loss 1.0\nTraining complete.\n")
    assert logs.analyze(found).verdict.kind == "healthy"


@pytest.mark.parametrize(
    ("tail", "kind"), [("step: 5 loss: 0.3\nstep: 6 loss: 0.2\n", "unknown"), ("", "nonfinite_loss")]
)
def test_a_loss_that_is_finite_again_was_skipped(job, tail, kind):
    assert logs.analyze(job("", stdout=f"step: 3 loss: 0.5\nstep: 4 loss: nan\n{tail}")).verdict.kind == kind


def test_a_rank_that_aborted_did_not_exit_without_an_error(job):
    aborted = FAILED.format(rank=1).replace("exitcode: 1", "exitcode: -6")
    verdict = logs.analyze(job(LOST.format(rank=0), "", LOST.format(rank=2), launcher=aborted)).verdict
    assert (verdict.kind, verdict.ranks) == ("signal", [1])


def test_gloo_may_have_ended_the_neighbour_of_the_rank_with_another_size(job):
    sizes = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 32 vs {} . Received\n"
    aborted = FAILED.format(rank=1).replace("exitcode: 1", "exitcode: -6")
    ranks = [LOST.format(rank=0), sizes.format(24), LOST.format(rank=2), LOST.format(rank=3)]
    verdict = logs.analyze(job(*ranks, launcher=aborted)).verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", [1, 2])
    assert verdict.sentence.startswith("One of ranks 1-2 and the others passed different sizes")


def test_the_neighbour_at_another_line_than_the_others_sent_another_size(job):
    """Rank 2 sent to rank 1; if rank 1 were in the same collective as rank 2, the sizes would be the same."""
    sizes = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 32 vs 24 . Received\n"
    aborted = FAILED.format(rank=1).replace("exitcode: 1", "exitcode: -6")
    for sender, blamed in ((2, [2]), (3, [1])):
        ranks = [LOST.format(rank=rank).replace("36", "50" if rank == sender else "36") for rank in range(4)]
        verdict = logs.analyze(job(ranks[0], sizes, *ranks[2:], launcher=aborted)).verdict
        assert (verdict.kind, verdict.ranks) == ("mismatch", blamed)


def test_ranks_at_as_many_lines_leave_open_whose_size_differs(job):
    """The aborted rank holds a scalar, but of the others none is where another one is."""
    sizes = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 128 vs 4 . Received\n"
    aborted = FAILED.format(rank=0).replace("exitcode: 1", "exitcode: -6")
    for line, blamed in (("36", [0]), ("50", [])):
        ranks = [sizes, "", LOST.format(rank=2), LOST.format(rank=3).replace("36", line)]
        verdict = logs.analyze(job(*ranks, launcher=aborted)).verdict
        assert (verdict.kind, verdict.ranks) == ("mismatch", blamed)
    assert verdict.sentence.startswith("Ranks passed different sizes to one collective: 128 bytes arrived where 4")


@pytest.mark.parametrize(
    ("said", "ranks"),
    [
        ("rank {rank}: {count} parameters", [2]),
        ("[{rank}] {count} classes", [2]),
        ("step {count} took {count} ms", [1, 2]),
        ("loaded in 1.{count} s", [1, 2]),
        ("host {rank}{count} is ready", [1, 2]),
    ],
)
def test_the_rank_that_printed_another_count_than_all_others_passed_another_size(job, tmp_path, said, ranks):
    sizes = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 32 vs 24 . Received\n"
    stderr = [LOST.format(rank=0), sizes, LOST.format(rank=2), LOST.format(rank=3)]
    found = job(*stderr, launcher=FAILED.format(rank=1).replace("exitcode: 1", "exitcode: -6"))
    for rank, count in enumerate((4, 4, 5, 4)):
        text = said.format(rank=rank, count=count)
        (tmp_path / "logs" / "job_x1" / "attempt_0" / str(rank) / "stdout.log").write_text(f"{text}\n")
    verdict = logs.analyze(found).verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", ranks)
    if said.startswith("rank"):
        assert "it printed `rank 2: 5 parameters`, the others `rank 0: 4 parameters`" in verdict.sentence


CLOSED = "E1122 12:10:12.569000 6723 api.py:882] Sending process 6{rank} closing signal SIGTERM\n"


def test_a_process_that_the_launcher_ends_after_the_training_is_not_healthy(job):
    assert logs.analyze(job("", "", stdout="step 7\ntraining finished\n")).verdict.kind == "healthy"
    verdict = logs.analyze(job("", "", stdout="step 7\ntraining finished\n", launcher=CLOSED.format(rank=1))).verdict
    assert (verdict.status, verdict.kind, verdict.ranks) == ("unknown", "unknown", [])
    assert verdict.sentence.endswith("but 1 process did not end afterwards: the launcher ended it")


def test_what_a_program_quotes_of_another_log_is_none_of_its_failures(job):
    quoted = "".join(f"| {line}\n" for line in TIMED_OUT.replace("[rank{rank}]: ", "").splitlines())
    cancelled = "| slurmstepd: error: *** STEP 41.0 ON node017 CANCELLED AT 2024-05-02T11:03:17 ***\n"
    verdict = logs.analyze(job("", "", stdout=f"{quoted}{cancelled}step 1200\ndone\n")).verdict
    assert (verdict.kind, verdict.ranks) == ("healthy", [])


def test_an_error_that_python_ignores_in_a_destructor_ends_nothing(job):
    ignored = "Exception ignored in: <function Loader.__del__ at 0x7f00>\n" + CAUGHT.format(line=41)
    report = logs.analyze(job(ignored, "", stdout="step 9\ndone\n"))
    assert report.verdict.kind == "healthy"
    assert [finding.severity for finding in report.findings] == ["info"]


def test_a_group_that_one_member_does_not_make_blames_that_member(job):
    code = "    savers = dist.new_group([0, 3], timeout=limit)\n"
    waits = LOST.format(rank=0).replace("all_reduce", "new_group").replace(
        '[rank0]:   File "/venv', f'[rank0]: {code}[rank0]:   File "/venv').replace(
        "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:16542",
        "torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//2//cpu//0/1")  # fmt: skip
    verdict = logs.analyze(job(waits, "", "", TIMED_OUT.format(rank=3))).verdict
    assert (verdict.kind, verdict.ranks) == ("mismatch", [3])
    assert "rank 0 waits in new_group (me/train.py:36, in step)" in verdict.sentence


def test_exit_codes_of_the_launcher_turn_stacks_into_an_answer(job, tmp_path):
    job(STACK.format(frames=WAITS), STACK.format(frames=READS))
    (tmp_path / "run.json").write_text(json.dumps({"schema": "workbench.run/1", "status": "failed",
                                                   "exit_codes": {"0": 1, "1": 1}}))  # fmt: skip
    verdict = incident.analyze(run.discover(tmp_path)).verdict
    assert (verdict.kind, verdict.ranks) == ("collective_timeout", [1])


def test_arguments_that_one_rank_rejects_are_those_of_its_node(job):
    usage = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --warmup 3\n"
    verdict = logs.analyze(job("", usage, "")).verdict
    assert (verdict.kind, verdict.ranks) == ("startup", [1])


def test_a_connection_to_a_worker_of_the_loader_is_none_to_a_rank(job):
    frames = ("/home/me/train.py", "/venv/torch/utils/data/dataloader.py", "/usr/lib/multiprocessing/connection.py")
    text = "".join(f'[rank1]:   File "{file}", line 3, in read\n' for file in frames)
    error = "[rank1]: ConnectionResetError: [Errno 104] Connection reset by peer\n"
    text = f"[rank1]: Traceback (most recent call last):\n{text}{error}"
    verdict = logs.analyze(job(LOST.format(rank=0), text)).verdict
    assert (verdict.kind, verdict.ranks) == ("dataloader_worker", [1])
