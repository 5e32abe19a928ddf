"""Test the joined report of all analyzers, and the comparison of runs."""

import json
import pickle

import pytest

from analyzers import compare, incident, run
from analyzers.errors import InputError
from analyzers.incident import chain
from analyzers.incident.analyzer_reports import AnalyzerReports
from analyzers.report import Report, Status, Verdict


def step(number, **more):
    base = {
        "step": number,
        "start_ns": number,
        "dur_ns": 100_000_000,
        "phases": {"fwd": 1_000_000},
        "tokens": 10,
        "loss": 4.0,
        "tags": [],
    }
    return base | more


def logged(folder, ranks=2, count=25, **more):
    (folder / "steps").mkdir(parents=True)
    for rank in range(ranks):
        lines = [
            {"schema": "workbench.steps/1", "rank": rank, "world_size": ranks},
            *(step(n, **more) for n in range(1, count)),
        ]
        (folder / "steps" / f"rank_{rank}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return folder


def manifest(folder, **content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"schema": "workbench.run/1", "world_size": 2, **content}))
    return folder


def waiting():
    entry = {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 16,
        "profiling_name": "gloo:all_gather",
        "state": "scheduled",
        "retired": False,
        "input_sizes": [[4]],
        "output_sizes": [[8]],
        "time_created_ns": 5,
        "is_p2p": False,
        "record_id": 1,
    }
    return pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [entry]})


@pytest.mark.parametrize("recorded", ["nothing", "a header", "a header and dumps"])
def test_a_completed_run_without_a_step_is_unknown(tmp_path, recorded):
    if recorded != "nothing":
        logged(tmp_path, count=1)
    if recorded == "a header and dumps":
        (tmp_path / "dumps").mkdir()
        idle = pickle.dumps({"version": "2.10", "pg_config": {}, "entries": []})
        for rank in range(2):
            (tmp_path / "dumps" / f"rank_{rank}").write_bytes(idle)
    report = incident.analyze(run.discover(manifest(tmp_path, status="completed")))
    assert (report.verdict.status, report.verdict.kind) == (Status.UNKNOWN, "unknown")
    assert "without one step" in report.verdict.sentence


def test_a_completed_run_that_names_its_last_step_is_healthy(tmp_path):
    report = incident.analyze(run.discover(manifest(tmp_path, status="completed", last_step=6)))
    assert report.verdict.kind == "healthy"


def test_a_completed_run_is_healthy(tmp_path):
    report = incident.analyze(run.discover(manifest(logged(tmp_path), status="completed")))
    assert (report.verdict.kind, report.verdict.status, report.data.chain) == ("healthy", "ok", [])
    assert report.data.hang is None
    assert "The run completed" in report.verdict.sentence


def test_a_state_of_memory_beside_a_log_is_unknown(tmp_path):
    """Neither says how the job went: the snapshot has no history, and the log shows no error."""
    block = {"address": 4096, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": []}
    segment = {"device": 0, "address": 4096, "total_size": 2 << 20, "stream": 0, "segment_type": "small",
               "segment_pool_id": (0, 0), "is_expandable": False, "blocks": [block]}  # fmt: skip
    (tmp_path / "rank0_memory_snapshot.pickle").write_bytes(
        pickle.dumps({"segments": [segment], "device_traces": [[]]})
    )
    (tmp_path / "job.log").write_text("[rank0]: loading the model\n")
    verdict = incident.analyze(tmp_path).verdict
    assert (verdict.status, verdict.kind) == (Status.UNKNOWN, "unknown")
    assert "without a history of allocations it is unknown" in verdict.sentence


def test_out_of_memory_explains_the_wait_of_the_others(tmp_path):
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    (dumps / "rank_0").write_bytes(waiting())
    frame = {"name": "forward", "filename": "/home/me/model.py", "line": 7}
    (dumps / "exit_1.json").write_text(
        json.dumps(
            {
                "rank": 1,
                "step": 6,
                "error": "OutOfMemoryError",
                "out_of_memory": True,
                "traceback": [frame],
                "time_ns": 3,
            }
        )
    )
    report = incident.analyze(run.discover(manifest(logged(tmp_path), status="failed", exit_codes={"0": -15, "1": 1})))
    assert (report.verdict.kind, report.verdict.ranks) == ("oom", [1])
    assert report.verdict.sentence.startswith("Rank 1 ran out of memory at step 6")
    assert "rank 0 waits in all_gather #16 of process group default_pg for it" in report.verdict.sentence
    assert [link.kind for link in report.data.chain] == ["oom", "waiting"]


@pytest.mark.parametrize("through", ["cause", "file"])
def test_a_plain_exception_names_rank_message_and_line(tmp_path, through):
    file = tmp_path / "logs" / "x_y" / "attempt_0" / "1" / "error.json"
    file.parent.mkdir(parents=True)
    stack = 'File "/x/site-packages/torch/a.py", line 1, in run\n  File "/home/me/train.py", line 53, in main\n'
    message = {"message": "ValueError: no such flavor\nmore", "extraInfo": {"py_callstack": stack, "timestamp": "17"}}
    file.write_text(json.dumps({"message": message}))
    cause = (
        {"rank": 1, "error": "ValueError", "message": "no such flavor", "file": str(file)}
        if through == "cause"
        else None
    )
    report = incident.analyze(run.discover(manifest(tmp_path, status="failed", cause=cause)))
    assert (report.verdict.kind, report.verdict.ranks) == ("crashed", [1])
    assert "ValueError: no such flavor in main (me/train.py:53)" in report.verdict.sentence
    assert [f.id for f in report.findings] == ["incident.crashed"]


@pytest.mark.parametrize("through", ["cause", "file"])
def test_the_next_step_is_the_hint_of_an_error_of_this_project(tmp_path, through):
    text = "there is no model 'flux'\nhint: available models: llama3, llama4"
    if through == "file":
        file = tmp_path / "logs" / "x_y" / "attempt_0" / "1" / "error.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"message": {"message": f"ConfigError: {text}", "extraInfo": {"timestamp": "17"}}}))
    cause = {"rank": 1, "error": "ConfigError", "message": text} if through == "cause" else None
    [finding] = incident.analyze(run.discover(manifest(tmp_path, status="failed", cause=cause))).findings
    assert finding.title == "Rank 1 failed with ConfigError: there is no model 'flux'"
    assert finding.next == "Available models: llama3, llama4."


TIMEOUT = "[/pytorch/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 12000ms for send operation to complete"


def test_a_collective_that_timed_out_is_a_symptom(tmp_path):
    """Rank 0 gave up first, rank 1 failed by itself later; if rank 1 did not fail, no rank is blamed."""
    cause = {"rank": 0, "error": "RuntimeError", "message": TIMEOUT, "file": "distributed_c10d.py:4394 all_reduce"}
    folder = manifest(tmp_path, status="failed", cause=cause)
    report = incident.analyze(run.discover(folder))
    assert (report.verdict.kind, report.verdict.ranks) == ("unknown", [])
    assert report.verdict.sentence.startswith("Rank 0 gave up waiting for a different rank: RuntimeError")
    file = tmp_path / "logs" / "x_y" / "attempt_0" / "1" / "error.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"message": {"message": "ValueError: no tokens", "extraInfo": {"timestamp": "17"}}}))
    report = incident.analyze(run.discover(folder))
    assert (report.verdict.kind, report.verdict.ranks) == ("crashed", [1])


def test_a_killed_rank_without_any_dump(tmp_path):
    report = incident.analyze(run.discover(manifest(tmp_path, status="failed", exit_codes={"0": -15, "1": -9})))
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [1])
    assert "killed by signal 9" in report.verdict.sentence


def test_a_broken_loss(tmp_path):
    report = incident.analyze(run.discover(manifest(logged(tmp_path, loss="nan"), status="completed")))
    assert report.verdict.kind == "nonfinite_loss"


def test_no_word_of_why(tmp_path):
    report = incident.analyze(run.discover(manifest(tmp_path, status="failed")))
    assert (report.verdict.kind, report.verdict.status) == ("unknown", "unknown")


def test_compare_finds_what_became_worse(tmp_path):
    a = manifest(logged(tmp_path / "a"), config={"optimizer": {"lr": 1}, "job": {"dump_folder": "a"}})
    b = manifest(
        logged(tmp_path / "b", dur_ns=130_000_000), config={"optimizer": {"lr": 2}, "job": {"dump_folder": "b"}}
    )
    report = compare.analyze(run.discover(a), run.discover(b))
    assert report.verdict.kind == "regression"
    assert [f.id for f in report.findings] == ["compare.step_time"]
    assert [(r.what, r.a, r.b) for r in report.data.config] == [("optimizer.lr", "1", "2")]
    assert {r.what: r.change for r in report.data.rows}["median step time"] == "+30 %"
    assert compare.analyze(run.discover(a), run.discover(a)).verdict.kind == "healthy"


def test_compare_of_nothing(tmp_path):
    for name in "ab":
        (tmp_path / name / "dumps").mkdir(parents=True)
        (tmp_path / name / "dumps" / "collection.json").write_text("{}")
    with pytest.raises(InputError, match="nothing to compare"):
        compare.analyze(run.discover(tmp_path / "a"), run.discover(tmp_path / "b"))


@pytest.mark.parametrize(
    ("others", "named"),
    [(("slow", "straggler"), True), (("mismatch", "straggler"), False), (("slow", "healthy"), False)],
)
def test_a_step_log_says_more_about_a_slow_rank_than_two_dumps(others, named):
    """A rank that advanced between two dumps is the straggler of the step log; the job does not hang."""

    def report(kind):
        verdict = Verdict(status=Status.WARNING, kind=kind, sentence=kind, confidence=1.0)
        return Report(schema="", version="", inputs=[], verdict=verdict, findings=[], data=None)

    hang, steps = map(report, others)
    assert chain.is_explained_by_steps(AnalyzerReports(hang=hang, steps=steps)) is named
