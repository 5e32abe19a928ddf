"""Find the cause of a job's end from its logs alone: class, ranks, and the line that the sentence names."""

import json
from pathlib import Path

import pytest

from analyzers import incident, logs
from analyzers.run import discover
from log_cases import COMPOSED, RECORDED, Case
from wild import recorded

ROOT = Path(__file__).parents[3]

CLASSES = {
    "network": {"network"},
    "none": {"healthy", "unknown"},
    "dataloader_worker": {"dataloader_worker"},
    "time_limit": {"time_limit"},
    "ddp_unused_parameters": {"unused_parameters"},
    "disk_full": {"disk_full"},
    "collective_timeout": {"collective_timeout"},
    "watchdog_timeout": {"collective_timeout"},
    "heartbeat": {"collective_timeout"},
    "mismatch": {"mismatch"},
    "port_in_use": {"startup"},
    "rendezvous": {"startup"},
    "signal": {"signal", "terminated"},
    "exception": {"crashed", "startup"},
    "illegal_memory_access": {"crashed", "hardware"},
    "device_assert": {"crashed"},
    "out_of_memory": {"oom"},
    "host_out_of_memory": {"host_oom"},
    "nan": {"nonfinite_loss"},
    "hardware": {"hardware"},
}
"""{label of the collected excerpts: classes of verdicts that mean the same}."""


@pytest.mark.parametrize("case", [*RECORDED, *COMPOSED], ids=lambda case: case.name)
def test_the_verdict_names_class_ranks_and_line(log_of, case: Case):
    report = logs.analyze(log_of(case))
    assert (report.verdict.kind, report.verdict.ranks) == (case.kind, case.ranks)
    said = [report.verdict.sentence, *(finding.why for finding in report.findings)]
    assert all(any(word in text for text in said) for word in case.words)


@pytest.mark.parametrize("case", [*RECORDED, *COMPOSED], ids=lambda case: case.name)
def test_the_joined_answer_is_that_of_the_logs(log_of, case: Case):
    # One log of a folder, or all of it: nothing else is known of these jobs.
    report = incident.analyze(log_of(case))
    assert report.verdict.ranks == case.ranks
    # Steps that a log shows may be healthy, although it does not show how the job ended.
    if case.kind != "unknown":
        assert (report.verdict.status == "ok") == (case.kind == "healthy")
    if case.kind not in ("healthy", "unknown"):
        assert report.verdict.kind == case.kind


def test_the_launchers_root_cause_is_not_believed_when_it_names_a_victim(log_of):
    report = logs.analyze(log_of(Case("hang", "", [])))
    assert [e.rank for e in report.data.events if e.kind == "torchrun_root_cause"] == [0]
    assert '"Root Cause" names rank 0 only because the process of that rank was the first' in report.findings[0].why


def test_a_parameter_that_is_ready_twice_is_not_said_to_be_unused(log_of):
    finding = logs.analyze(log_of(next(case for case in COMPOSED if case.name == "ready_twice"))).findings[0]
    assert "no gradient" not in finding.title + finding.why
    assert "use_reentrant=False" in finding.next


def test_parameters_without_a_gradient_are_numbered(log_of):
    finding = logs.analyze(log_of(next(case for case in RECORDED if case.name == "unused"))).findings[0]
    assert finding.title.startswith(
        "Parameters 2, 3 (counted from 0 among those that require a gradient) got no gradient on rank 1"
    )


def test_all_numbers_of_cuda_out_of_memory_are_read(log_of):
    case = next(case for case in COMPOSED if case.name == "cuda_oom_one_rank")
    facts = logs.analyze(log_of(case)).data.events[0].facts
    gib = [round(value / 2**30, 2) for value in (
        facts.requested_bytes, facts.total_bytes, facts.free_bytes, facts.process_bytes, facts.allocated_bytes,
        facts.unallocated_bytes, *facts.other_processes,
    )]  # fmt: skip
    assert gib == [18.5, 79.11, 3.28, 65.8, 61.02, 3.91, 10.01]
    assert facts.device == 2


@pytest.mark.parametrize(("requested", "fits"), [("18.50 GiB", False), ("13.20 GiB", True)])
def test_other_processes_are_only_blamed_where_the_request_would_fit_without_them(log_of, requested, fits):
    """3.28 GiB are free, and another process has 10.01 GiB."""
    case = next(case for case in COMPOSED if case.name == "cuda_oom_one_rank")
    text = case.text.replace("18.50 GiB", requested)
    finding = logs.analyze(log_of(Case("oom", "oom", [2], text=text))).findings[0]
    assert finding.next.startswith("See what the other processes on the device are, which have 10.0 GiB") is fits


@pytest.mark.parametrize(
    ("requested", "advice"), [(8 << 20, "the memory was full already"), (1 << 48, "Check the size")]
)
def test_a_small_request_for_host_memory_is_not_said_to_have_a_wrong_size(log_of, requested, advice):
    error = f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {requested} bytes. Error code 12"
    text = f"step 3 loss 1.0\n[rank1]: RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. {error}\n"
    finding = logs.analyze(log_of(Case("host", "", [], text=text))).findings[0]
    assert finding.id == "logs.host_oom"
    assert advice in finding.next


def test_the_one_who_preempted_a_job_is_not_searched_for(log_of):
    finding = logs.analyze(log_of(next(case for case in COMPOSED if case.name == "preempted"))).findings[0]
    assert finding.next.startswith("Resume from the last checkpoint")


def test_the_watchdogs_numbers_are_read(log_of):
    case = next(case for case in COMPOSED if case.name == "watchdog_one_behind")
    first = logs.analyze(log_of(case)).data.events[0]
    facts = first.facts
    assert (first.rank, first.seq, facts.operation, facts.input_elements) == (0, 4411, "ALLREDUCE", 8192)
    assert (facts.timeout_ms, facts.waited_ms) == (600000, 600020)


def test_exceptions_of_a_log_folder_are_those_of_its_ranks(log_of):
    report = logs.analyze(log_of(Case("recorded_error", "", [])))
    own = [e for e in report.data.events if e.kind == "exception"]
    assert {e.rank for e in own} == {1}
    assert {e.path.rpartition("/")[2] for e in own} >= {"error.json", "stderr.log"}


def test_a_log_that_begins_with_a_rank_and_names_segments_is_no_snapshot(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Try expandable_segments:True\n")
    assert logs.analyze(log).verdict.kind == "oom"


def test_an_exception_that_the_job_outlived_is_no_cause(tmp_path):
    text = 'Traceback (most recent call last):\n  File "/home/me/sync.py", line 3, in push\nValueError: no\n'
    log = tmp_path / "job.log"
    log.write_text(f"step 1 loss 2.0\n{text}step 2 loss 1.9\nTraining completed.\n")
    assert logs.analyze(log).verdict.kind == "healthy"
    log.write_text(f"step 1 loss 2.0\n{text}")
    assert logs.analyze(log).verdict.kind == "crashed"


def test_a_later_attempt_that_completes_overrules_the_first(tmp_path):
    for attempt, text in ((0, "ValueError: shard 3 is gone\n"), (1, "step 9 loss 1.0\nTraining completed.\n")):
        folder = tmp_path / "run_x" / f"attempt_{attempt}" / "0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)
    assert logs.analyze(tmp_path).verdict.kind == "healthy"


def test_a_traceback_beside_healthy_steps_is_no_healthy_run(tmp_path):
    steps = tmp_path / "steps"
    steps.mkdir()
    rows = ({"schema": "workbench.step/1", "rank": 0, "step": n, "start_ns": n * 10**9, "dur_ns": 10**9, "loss": 2.0}
            for n in range(1, 30))  # fmt: skip
    (steps / "rank_0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "stderr.log").write_text(
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in <module>\nOSError: gone\n'
    )
    report = incident.analyze(discover(tmp_path))
    assert (report.verdict.status, report.verdict.kind) == ("error", "crashed")
    assert "train.py:9" in report.verdict.sentence


def test_an_exception_that_a_logger_printed_is_no_failure_without_another_sign(tmp_path):
    log = tmp_path / "stderr.log"
    text = 'ERROR:root:again\nTraceback (most recent call last):\n  File "/home/me/a.py", line 3, in f\nOSError: x\n'
    log.write_text(text + "opened the file\nread the file\n")
    assert logs.analyze(log).verdict.kind == "unknown"
    log.write_text(text + "E1122 12:10:12.569000 6723 api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 67) of x\n")
    assert logs.analyze(log).verdict.kind == "crashed"


def test_an_exception_that_a_logger_printed_at_the_end_of_the_only_log_is_the_failure(tmp_path):
    text = 'ERROR:root:failed:\nTraceback (most recent call last):\n  File "/home/me/a.py", line 3, in f\nOSError: x\n'
    (tmp_path / "stderr.log").write_text(text)
    report = logs.analyze(tmp_path / "stderr.log")
    assert (report.verdict.kind, [f.id for f in report.findings]) == ("crashed", ["logs.crashed"])
    (tmp_path / "stdout.log").write_text("step 1 loss 2.0\nstep 2 loss 1.0\n")
    assert logs.analyze(tmp_path).verdict.kind == "unknown"


GAVE_UP = """\
Traceback (most recent call last):
  File "/home/me/train.py", line {line}, in {function}
    call()
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in {operation}
    work.wait()
RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete
"""


def worker_logs(tmp_path, *texts):
    for rank, text in enumerate(texts):
        folder = tmp_path / "run_x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text)


def test_a_rank_that_printed_nothing_is_the_one_that_did_not_come(tmp_path):
    backward = GAVE_UP.format(line=22, function="step", operation="all_reduce")
    worker_logs(tmp_path, backward, "", backward)
    verdict = logs.analyze(tmp_path).verdict
    assert (verdict.kind, verdict.ranks) == ("collective_timeout", [1])
    assert "all_reduce (me/train.py:22, in step)" in verdict.sentence


@pytest.mark.real
def test_excerpts_of_public_logs_have_the_labelled_conclusion(tmp_path):
    folder = recorded("logs")
    labels = json.loads((folder / "labels.json").read_text())
    wrong = []
    for name, label in labels.items():
        log = tmp_path / f"{name}.log"
        log.write_bytes((folder / name).read_bytes())
        verdict = logs.analyze(log).verdict
        ranks = label["culprit_ranks"] or []
        suspects = label["key_facts"].get("suspect_ranks", ranks)
        if verdict.kind not in CLASSES[label["kind"]] or verdict.ranks not in (ranks, [], suspects):
            wrong.append(f"{name}: {verdict.kind} {verdict.ranks} {verdict.sentence}")
    assert len(wrong) <= 0.1 * len(labels), wrong


FINGERPRINT = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/user/app/mismatch.py", line {line}, in main
[rank{rank}]:     dist.collective(x)
[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. \
Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=0, OpType={own}, TensorShape=[20, 10]), \
but Rank {other} is running collective: CollectiveFingerPrint(SequenceNumber=0, OpType={theirs}, TensorShape=[20, 10]).
"""


def test_each_side_of_different_operations_has_its_own_line(log_of):
    usual = [FINGERPRINT.format(rank=r, other=1, line=6, own="ALLREDUCE", theirs="REDUCE") for r in (0, 2, 3)]
    odd = FINGERPRINT.format(rank=1, other=0, line=4, own="REDUCE", theirs="ALLREDUCE")
    report = logs.analyze(log_of(Case("fingerprints", "", [], text="".join([*usual, odd]))))
    assert report.verdict.ranks == [1]
    assert report.verdict.sentence == (
        "Rank 1 called REDUCE [20, 10] (app/mismatch.py:4, in main) while ranks 0, 2-3 called ALLREDUCE [20, 10]"
        " (app/mismatch.py:6, in main)"
    )
    assert report.findings[0].evidence[0].line == "/home/user/app/mismatch.py:4"


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("[MODEL] forward failed, using the fallback: CUDA error: an illegal memory access was encountered", True),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("  what():  CUDA error: an illegal memory access was encountered", False),
        ("[rank1]:[E1003 ProcessGroupNCCL.cpp:607] [Rank 1] terminated with exception: CUDA error: unspecified", False),
    ],
)
def test_an_error_of_cuda_that_the_program_prints_itself_was_caught(log_of, line, caught):
    [finding] = logs.analyze(log_of(Case("cuda", "", [], text=f"step 3 loss 1.0\n{line}\n"))).findings[:1]
    assert ("the program caught it" in finding.title) is caught
    assert "so that the traceback points to the failing kernel" in finding.next


def test_a_job_ended_from_outside_shows_its_last_step(log_of):
    [finding] = [f for f in logs.analyze(log_of(Case("terminated", "", []))).findings if f.id == "logs.terminated"]
    [_, fact] = finding.evidence
    assert fact.text == "last step before the end: step 59"
    assert fact.source.endswith("terminated.log:184")


def test_a_job_ended_from_outside_shows_the_rank_that_got_least_far(log_of):
    lines = [f"[rank{rank}]: step {step} loss 2.{step}" for step in (7, 8, 9) for rank in (0, 1) if step < 9 - rank]
    agent = "W1122 12:13:39.7 7867 torch/distributed/elastic/agent/server/api.py:753]"
    stop = f"{agent} Received 15 death signal, shutting down workers"
    text = "\n".join([*lines, stop, ""])
    [finding] = logs.analyze(log_of(Case("behind", "", [], text=text))).findings
    assert [fact.text for fact in finding.evidence[1:]] == [
        "last step before the end (rank 0): step 8 loss 2.8",
        "last step before the end (rank 1): step 7 loss 2.7",
    ]


def test_a_consequence_names_its_reporter_and_the_finding_to_fix(log_of):
    report = logs.analyze(log_of(Case("terminated", "", [])))
    titles = [f.title for f in report.findings if f.id == "logs.consequence"]
    assert all(title.startswith("The launcher reported: ") for title in titles if "SignalException" in title)
    case = next(case for case in COMPOSED if case.name == "cuda_oom_one_rank")
    steps = {f.next for f in logs.analyze(log_of(case)).findings if f.id == "logs.consequence"}
    assert steps <= {"Fix the failure above first (logs.oom, llm/model.py:88)."}


def test_a_local_rank_is_a_rank_only_on_one_node(log_of):
    line = (
        "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -9) local_rank: 2 (pid: 11) of"
        " binary: python"
    )
    [finding] = logs.analyze(log_of(Case("local", "", [], text=line + "\n"))).findings
    assert "The log gives only the local rank: rank 2 is right if the job has one node." in finding.why


def test_the_excerpt_of_an_error_file_ends_with_what_was_raised():
    report = logs.analyze(ROOT / "tests" / "fixtures" / "stuck_4ranks" / "logs")
    [event] = [event for event in report.data.events if event.rank == 0]
    assert event.path.endswith("error.json")
    assert event.excerpt.splitlines()[-1].startswith("RuntimeError: ")
    assert "Timed out waiting 12000ms" in event.excerpt


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("port_in_use", "Rank 0 opens this port for the store through which all ranks find each other."),
        ("import_error", "A name that is part of the project is only found if its folder is the script's own or in"),
        ("host_memory", "PyTorch asked the system for this much host memory, and got none. The errors of ranks 0, 2"),
    ],
)
def test_the_reason_says_what_the_failure_means(name: str, why: str):
    report = logs.analyze(discover(Path(__file__).with_name("recorded") / f"{name}.log"))
    assert report.findings[0].why.startswith(why)
    assert "no other" not in report.findings[0].why.lower()


@pytest.mark.parametrize(
    ("name", "advice", "not_advised"),
    [
        ("mismatch", "All ranks are in the same line, and what they pass differs", "a branch"),
        ("import_error", "start from the project's root or add that folder to PYTHONPATH", "beside the script"),
        ("no_script", "Correct the path of the script", "torchrun python"),
    ],
)
def test_the_advice_fits_the_case(name: str, advice: str, not_advised: str):
    report = logs.analyze(discover(Path(__file__).with_name("recorded") / f"{name}.log"))
    assert advice in report.findings[0].next
    assert not_advised not in report.findings[0].next


def test_python_that_torchrun_took_for_the_script_is_named(tmp_path: Path):
    text = (Path(__file__).with_name("recorded") / "no_script.log").read_text()
    (tmp_path / "job.log").write_text(text.replace("trian.py", "python"))
    finding = logs.analyze(discover(tmp_path)).findings[0]
    assert finding.id == "logs.startup.no_script"
    assert finding.next.startswith("Write `torchrun script.py`, not `torchrun python script.py`")


HINTED = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/home/me/trainer/checkpoint.py", line 196, in _load
[rank{rank}]:     raise CheckpointError(
[rank{rank}]: trainer.errors.CheckpointError: step-9 is not a complete checkpoint
{between}[rank{rank}]: hint: choose a complete one: outputs/checkpoint has step 4
"""


@pytest.mark.parametrize(
    ("between", "step"),
    [
        ("", "Choose a complete one: outputs/checkpoint has step 4."),
        ("[rank1]: hint: of another rank\n", "Choose a complete one: outputs/checkpoint has step 4."),
        ("[rank0]: saving\n" * 3, "Open the line that the title names"),
        ("[rank0]: Traceback (most recent call last):\n", "Open the line that the title names"),
    ],
    ids=["at once", "after a line of another rank", "too far below", "of another exception"],
)
def test_the_next_step_is_the_hint_below_the_exception(tmp_path, between, step):
    (tmp_path / "job.log").write_text(HINTED.format(rank=0, between=between))
    finding = logs.analyze(tmp_path / "job.log").findings[0]
    assert "CheckpointError: step-9 is not a complete checkpoint" in finding.title
    assert finding.next.startswith(step)


def test_the_hint_in_the_error_file_of_a_worker_is_the_next_step(tmp_path):
    file = tmp_path / "attempt_0" / "0" / "error.json"
    file.parent.mkdir(parents=True)
    text = "DataError: too few tokens\nhint: give more text, or lower training.seq_len"
    stack = f'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in <module>\n{text}\n'
    file.write_text(json.dumps({"message": {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": "17"}}}))
    assert logs.analyze(file).findings[0].next == "Give more text, or lower training.seq_len."


def test_a_failed_connection_is_not_said_to_be_the_certain_cause_of_other_errors(log_of):
    text = next(case.text for case in COMPOSED if case.name == "infiniband").replace(
        "[rank18]: torch", "[rank18]: torch.distributed.DistBackendError: NCCL error\n[rank19]: torch"
    )
    finding = logs.analyze(log_of(Case("two_ranks", "network", [], text=text))).findings[0]
    assert finding.id == "logs.network"
    assert "or from the cause of both" in finding.why


@pytest.mark.parametrize(
    ("frame", "is_loss"),
    [
        ('/env/lib/python3.13/site-packages/torch/nn/functional.py", line 3504, in cross_entropy', True),
        ('/home/user/app/model.py", line 35, in forward', False),
        ('/home/user/app/cross_entropy.py", line 35, in log_metrics', False),
    ],
    ids=["loss", "model", "metrics"],
)
def test_a_request_that_failed_in_the_loss_is_advised_to_compute_it_in_pieces(tmp_path, frame, is_loss):
    log = tmp_path / "train.log"
    log.write_text(
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/home/user/app/train.py", line 12, in <module>\n'
        "[rank0]:     loss = step(batch)\n"
        f'[rank0]:   File "{frame}\n'
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 18.84 GiB. GPU 0 has a total capacity"
        " of 39.38 GiB of which 484.56 MiB is free.\n"
    )
    advice = logs.analyze(log).findings[0].next
    assert advice.startswith("Compute the loss in pieces") is is_loss
    assert "se a smaller batch or sequence" in advice


@pytest.mark.parametrize(("failed", "is_first"), [((2,), True), ((0, 1, 2, 3), False)])
def test_one_of_several_ranks_is_first_compared_with_the_others(tmp_path, failed, is_first):
    """The other logs show steps; where all ranks fail, there is nothing to compare."""
    for rank in range(4):
        text = "".join(f"step {step}/100 loss {3 - step / 100:.3f}\n" for step in range(1, 9))
        error = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB. GPU 2 has a total capacity of"
            " 79.15 GiB of which 5.21 GiB is free. Including non-PyTorch memory, this process has 73.90 GiB memory in"
            " use. Of the allocated memory 70.05 GiB is allocated by PyTorch, and 1.52 GiB is reserved by PyTorch but"
            " unallocated.\n"
        )
        (tmp_path / f"rank_{rank}.log").write_text(text + error * (rank in failed))
    [finding] = [one for one in logs.analyze(tmp_path).findings if one.id == "logs.oom"]
    assert finding.next.startswith("First compare rank 2 with the other ranks") == is_first
    assert "smaller batch or sequence" in finding.next
