"""The cause of a failed job is the earliest error of any attempt."""

import json
import os

from workbench.launch.run_manifest import first_error


def error_file(logs, attempt, rank, *, at, message):
    folder = logs / "job_x" / f"attempt_{attempt}" / str(rank)
    folder.mkdir(parents=True)
    stack = 'Traceback\n  File "train.py", line 7, in main\n  File "model.py", line 42, in forward\n'
    body = {"message": {"message": message, "extraInfo": {"timestamp": str(int(at)), "py_callstack": stack}}}
    path = folder / "error.json"
    path.write_text(json.dumps(body))
    os.utime(path, (at, at))


def test_the_first_attempt_wins_over_the_last(tmp_path):
    error_file(tmp_path, 1, 0, at=2000.0, message="RuntimeError: connection refused")
    error_file(tmp_path, 0, 1, at=1000.5, message="ValueError: bad batch")
    error_file(tmp_path, 0, 0, at=1000.7, message="RuntimeError: peer closed")
    cause = first_error(tmp_path, since=0.0)
    assert (cause["rank"], cause["error"], cause["message"]) == (1, "ValueError", "bad batch")
    assert cause["file"] == "model.py:42 forward"


def test_an_earlier_launch_is_not_the_cause(tmp_path):
    error_file(tmp_path, 0, 0, at=1000.0, message="RuntimeError: old")
    assert first_error(tmp_path, since=1500.0) is None


def test_a_torn_file_is_passed_by(tmp_path):
    error_file(tmp_path, 0, 0, at=1000.0, message="RuntimeError: x")
    torn = tmp_path / "job_x" / "attempt_0" / "1" / "error.json"
    torn.parent.mkdir(parents=True)
    torn.write_text('{"message": {"mess')
    assert first_error(tmp_path, since=0.0)["rank"] == 0
