"""Read exception chains, tracebacks in boxes, and torchrun's messages about which rank ended and how."""

import pytest

from analyzers import logs, steps
from analyzers.errors import InputError
from analyzers.incident import analyze
from analyzers.logs.report import case_of
from analyzers.run import discover

WAIT = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/train.py", line {line}, in {function}
[rank{rank}]:   File "/venv/site-packages/torch/distributed/distributed_c10d.py", line 3252, in {operation}
[rank{rank}]: RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete
"""
LOST = WAIT.replace("unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete",
                    "transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13014")  # fmt: skip
DURING = "\n[rank{rank}]: During handling of the above exception, another exception occurred:\n\n"
OWN = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/train.py", line 22, in train
[rank{rank}]: KeyError: 'horse'
"""
BOX = """[rank1]: ╭────────────── Traceback (most recent call last) ──────────────╮
[rank1]: │ /home/me/{shown}                                                  │
[rank1]: │                                                                   │
[rank1]: │   22 def sample(population, count):                               │
[rank1]: │ ❱ 23 │   return random.sample(population, count)                  │
[rank1]: │   24                                                              │
[rank1]: │                                                                   │
[rank1]: │ /usr/lib/python3.11/random.py:456 in sample                       │
[rank1]: │                                                                   │
[rank1]: │ ❱ 456 │   │   │   raise RuntimeError("CUDA out of memory. Tried") │
[rank1]: ╰───────────────────────────────────────────────────────────────────╯
[rank1]: ValueError: Sample larger than population or is negative
"""
FAILED = """  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 6{rank})
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""
STOPPED = "W1122 10:00:01.2 4 torch/distributed/elastic/multiprocessing/api.py:1028] "


def wait(rank, function="train", line=23, operation="all_reduce", *, text=WAIT):
    return text.format(rank=rank, function=function, line=line, operation=operation)


def chain(rank, first, last):
    return first + DURING.format(rank=rank) + last


def table(*codes):
    """Return torchrun's table of failures for ranks with these exit codes."""
    blocks = [FAILED.format(rank=rank, code=code) for rank, code in codes]
    numbered = "".join(f"[{number}]:\n{block}" for number, block in enumerate(blocks[1:], 1))
    return f"Failures:\n{numbered}{'-' * 60}\nRoot Cause (first observed failure):\n[0]:\n{blocks[0]}{'=' * 60}\n"


@pytest.fixture
def said(tmp_path):
    """Fixture: a function from the output of each rank and of torchrun to the report on these logs."""

    def report(*ranks, launcher="", stdout=()):
        for rank, text in enumerate(ranks):
            folder = tmp_path / "logs" / "job_x1" / "attempt_0" / str(rank)
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(text)
            (folder / "stdout.log").write_text(stdout[rank] if stdout else "")
        (tmp_path / "torchrun.log").write_text(launcher)
        return logs.analyze(tmp_path)

    return report


def test_a_finally_that_waits_for_the_others_does_not_hide_the_error(said):
    closing = [wait(rank, "main", 32, "barrier", text=LOST) for rank in range(3)]
    victims = [chain(rank, wait(rank), closing[rank]) for rank in (0, 2)]
    report = said(victims[0], chain(1, OWN.format(rank=1), closing[1]), victims[1])
    assert (report.verdict.kind, report.verdict.ranks) == ("crashed", [1])
    assert "KeyError: 'horse' in train (me/train.py:22)" in report.verdict.sentence


def test_an_error_whose_handler_joins_the_others_is_not_blamed(said):
    """One rank lacks a cache; its handler of the error calls the collective in which all other ranks wait."""
    report = said(wait(0), chain(1, OWN.format(rank=1), wait(1)), wait(2), "")
    assert (report.verdict.kind, report.verdict.ranks) == ("collective_timeout", [3])


def test_a_victim_that_wraps_its_lost_connection_is_not_the_culprit(said):
    wrapped = OWN.format(rank=0).replace("KeyError: 'horse'", "RuntimeError: training failed")
    report = said(chain(0, wait(0), wrapped), "", chain(2, wait(2), wrapped.replace("rank0", "rank2")))
    assert (report.verdict.kind, report.verdict.ranks) == ("collective_timeout", [1])


@pytest.mark.parametrize("shown", ["train.py:23 in sample", "a/long/ │\n[rank1]: │ train.py:23 in sample"])
def test_a_traceback_in_a_box_names_its_line_and_its_exception(said, shown):
    report = said("", BOX.format(shown=shown))
    assert (report.verdict.kind, report.verdict.ranks) == ("crashed", [1])
    assert "ValueError: Sample larger than population" in report.verdict.sentence
    assert "train.py:23)" in report.verdict.sentence


def test_a_connection_of_the_program_to_a_server_is_none_between_ranks(said):
    refused = (
        "2026-11-23 03:41:56,859 [ERROR] upload failed: ConnectionResetError(104, 'Connection reset by peer')\n"
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 26, in put\n'
        "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    )
    report = said(refused * 2, "")
    assert report.verdict.kind == "unknown"
    assert report.verdict.sentence.startswith("One line looks like an error")


def test_a_rank_that_the_table_of_failures_lacks_ended_with_0(said):
    lost = wait(0, text=LOST)
    report = said(lost, "", "", launcher=table((0, 1), (2, -15)))
    assert (report.verdict.kind, report.verdict.ranks) == ("early_exit", [1])
    assert "Rank 1 ended with exit code 0; rank 0 lost the connection in all_reduce" in report.verdict.sentence
    assert report.findings[0].next.startswith("Find out why rank 1 left the training before the others: uneven data")


def test_a_rank_that_the_launcher_ended_by_sigterm_left_its_training_loop(said):
    report = said(wait(0, text=LOST), "", launcher=table((0, 1), (1, -15)))
    assert (report.verdict.kind, report.verdict.ranks) == ("early_exit", [1])
    assert "Rank 1 left its training loop without an error" in report.verdict.sentence


def test_a_rank_that_waits_when_all_others_ended_with_0_is_suspected(said):
    report = said(wait(0, "save", 22, "barrier", text=LOST), "", "", launcher=table((0, 1)))
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [0])
    assert "Rank 0 issued barrier (me/train.py:22, in save) when all other ranks had ended" in report.verdict.sentence
    assert report.verdict.confidence < 0.5


def test_without_a_table_nothing_shows_which_of_two_silent_ranks_ended(said):
    printed = ["step 7 loss 1.0\n"] * 3
    report = said(wait(0, text=LOST), "", "", stdout=printed)
    assert (report.verdict.kind, report.verdict.ranks) == ("unknown", [])
    assert "workbench launch -- COMMAND" in report.findings[0].next
    lines = [e.text for e in report.findings[0].evidence]
    assert "the last line of rank 1 (step 7) is: step 7 loss 1.0" in lines


def test_the_silent_rank_whose_steps_end_earlier_is_suspected(said):
    printed = ["step 6 loss 1.0\nstep 7 loss 1.0\n", "step 6 loss 1.0\n", "step 6 loss 1.0\nstep 7 loss 1.0\n"]
    report = said(wait(0, text=LOST), "", "", stdout=printed)
    assert report.verdict.ranks == [1]
    assert report.verdict.confidence < 0.5


def test_a_rank_that_the_launcher_had_to_kill_was_stuck_not_killed(said):
    launcher = f"{STOPPED}Unable to shutdown process 61 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"
    killed = table((0, 1), (2, 1), (1, -9))
    report = said(wait(0), "", wait(2), launcher=launcher + killed)
    assert (report.verdict.kind, report.verdict.ranks) == ("collective_timeout", [1])


def test_a_rank_that_was_killed_stays_the_cause(said):
    report = said(wait(0, text=LOST), "", wait(2, text=LOST), launcher=table((1, -9), (0, 1), (2, 1)))
    assert (report.verdict.kind, report.verdict.ranks) == ("signal", [1])


def test_a_table_of_many_ranks_names_each_with_its_own_code(said):
    codes = [(rank, -15) for rank in range(16)] + [(16, -9)] + [(rank, -15) for rank in range(17, 32)]
    report = said(wait(0, text=LOST), launcher=table((31, 1), *codes[:31]))
    listed = {e.rank: e.facts.exit_code for e in report.data.events if e.kind.startswith("torchrun")}
    assert listed == dict(codes) | {31: 1}
    assert (report.verdict.kind, report.verdict.ranks) == ("signal", [16])


def test_threads_that_communicate_beside_the_training_leave_the_rank_open(said):
    thread = "Exception in thread Thread-1 (save):\n" + wait(0, "save", 12, "all_gather").replace("[rank0]: ", "")
    report = said(*(wait(rank) + thread for rank in range(3)))
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [])
    assert (
        "all_gather (me/train.py:12, in save), ranks 0-2 wait in all_reduce (me/train.py:23, in train)"
        in report.verdict.sentence
    )
    assert "dist.new_group()" in report.findings[0].next


def test_a_loss_that_ends_its_rank_is_told_before_the_exit_code(said):
    printed = ["step 7 loss 0.5\n", "step 7 loss 0.5\n", "step 7 loss 0.5\nLoss is nan, stopping training\n"]
    lost = [wait(rank, text=LOST) for rank in (0, 1)]
    report = said(*lost, "", stdout=printed, launcher=table((2, 1), (0, 1), (1, 1)))
    assert (report.verdict.kind, report.verdict.ranks) == ("nonfinite_loss", [2])
    assert "loss of rank 2 is not finite" in report.verdict.sentence


def test_a_rank_that_says_at_last_that_it_is_done_survived_its_errors(said):
    caught = 'Traceback (most recent call last):\n  File "/home/me/a.py", line 3, in f\nValueError: no\n'
    report = said(caught, "", stdout=["again\nrank 0 step 5 loss 0.2\nfinished\n", "rank 1 step 5 loss 0.2\n"])
    assert report.verdict.kind == "healthy"


def test_torchruns_table_alone_is_a_log(tmp_path):
    file = tmp_path / "what_i_copied.txt"
    file.write_text("train.py FAILED\n" + table((0, -9)))
    verdict = analyze(discover(file)).verdict
    assert (verdict.kind, verdict.ranks) == ("signal", [0])


def test_a_json_file_without_rows_is_told_what_to_give_instead(tmp_path):
    file = tmp_path / "labels.json"
    file.write_text('{"a.txt": {"iteration": 4, "facts": {"loss": 1.5}}}')
    with pytest.raises(InputError) as error:
        steps.analyze(file)
    assert (
        error.value.hint
        == "give a step log with one row per step, or a log, a dump, a snapshot or the folder of the run"
    )


RELAYED = """[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/train.py", line 29, in main
[rank{rank}]:   File "/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/utils.py", line 263, in all_reduce
[rank{rank}]:     raise final_result
[rank{rank}]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1, 2])
[rank{rank}]: Traceback (most recent call last): (RANK 1)
[rank{rank}]:   File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1253, in _save
[rank{rank}]:     pickler.dump(obj)
[rank{rank}]: TypeError: cannot pickle '_thread.lock' object
[rank{rank}]: Traceback (most recent call last): (RANK 2)
[rank{rank}]:   File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1253, in _save
[rank{rank}]:     pickler.dump(obj)
[rank{rank}]: TypeError: cannot pickle '_thread.lock' object
"""


def test_an_error_relayed_to_all_ranks_is_that_of_the_ranks_on_which_it_happened(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(RELAYED.format(rank=rank) for rank in range(4)))
    verdict = logs.analyze(discover(log)).verdict
    assert (verdict.kind, verdict.ranks) == ("crashed", [1, 2])
    assert "_thread.lock (me/train.py:29, in main): TypeError: cannot pickle '_thread.lock' object" in verdict.sentence


def test_a_traceback_that_another_rank_cut_off_explains_its_wait(tmp_path):
    wait = (
        "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=6463, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800017 milliseconds before"
        " timing out.\n"
    )
    frames = (
        '  File "/home/user/train.py", line 101, in <module>\n    main()\n'
        '  File "/home/user/model.py", line 167, in on_train_epoch_end\n    scores = self.metric.compute()\n'
    )
    log = tmp_path / "job.log"
    log.write_text(frames + wait)
    verdict = logs.analyze(log).verdict
    assert verdict.kind == "crashed"
    assert "model.py:167" in verdict.sentence
    log.write_text(wait + frames)
    assert logs.analyze(log).verdict.kind == "collective_timeout"


@pytest.mark.parametrize(
    "error",
    [
        "socket.gaierror: [Errno -2] Name or service not known",
        "struct.error: unpack requires a buffer of 4 bytes",
        "cv2.error: OpenCV(4.8.0) /io/opencv/modules/imgproc/src/color.cpp:182: error: (-215) !_src.empty()",
        "zlib.error: Error -3 while decompressing data: incorrect header check",
    ],
)
def test_the_class_of_an_exception_may_be_in_small_letters(error):
    case = case_of(
        f'Traceback (most recent call last):\n  File "/w/data.py", line 5, in read\n    x = get()\n{error}\n'
    )
    assert case is not None
    assert [event.message[:30] for event in case.events] == [error[:30]]
    assert case.lead.calls == ["/w/data.py:5:read"]


@pytest.mark.parametrize(
    ("first", "kind", "failure"),
    [
        ("", "crashed", "checkpoints.write_failed"),
        ("OSError: [Errno 28] No space left on device", "disk_full", "checkpoints.no_space"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk_full", "checkpoints.quota"),
    ],
)
def test_only_what_says_so_is_a_full_disk(said, first, kind, failure):
    save = (
        '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/home/me/train.py", line 5, in save\n[rank0]: '
    )
    failed = f"{save}RuntimeError: [enforce fail at inline_container.cc:424] . unexpected pos 7323520 vs 7323408\n"
    verdict = said(chain(0, f"{save}{first}\n", failed) if first else failed).verdict
    assert (verdict.kind, verdict.failure) == (kind, failure)
