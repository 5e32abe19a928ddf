"""A console with several attempts, one after the other: each is judged, and the last one is how the job ended."""

import pytest

from analyzers import logs

_CRASH = (
    "[rank6]: Traceback (most recent call last):\n"
    '[rank6]:   File "/w/train.py", line 508, in forward\n'
    "[rank6]:     y = self.emb(x)\n"
    "[rank6]: torch.AcceleratorError: CUDA error: device-side assert triggered\n"
)
_ENDED = (
    "E0105 10:40:00.000000 93669 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -6)"
    " local_rank: 6 (pid: 1711) of binary: /usr/bin/python3\n"
)
_OTHER = (
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "/w/data.py", line 31, in load\n'
    "[rank2]: FileNotFoundError: [Errno 2] No such file or directory: '/data/part-7.bin'\n"
)


def _steps(first, last):
    return "".join(f"[rank0]: step: {step:2}  loss: {3 - step / 1000:.4f}\n" for step in range(first, last + 1))


def _starts(number, step):
    return {
        "script": f"[Mon Jan  5 10:00:00 UTC 2026] attempt #{number}\n",
        "torchtitan": f"[rank0]:[titan] 2026-01-01 10:00:20,000 - root - INFO - Training starts at step {step}\n",
        "torchrun": "W0105 10:40:01 9 torch/distributed/elastic/agent/server/api.py:900] [default] Worker group FAILED."
        f" {3 - number} attempts left; will restart worker group\n"
        "I0105 10:40:02 9 torch/distributed/elastic/agent/server/api.py:715] [default] Restarting worker group\n"
        if number > 1
        else "",
        "elastic": f"  restart_count={number - 1}\n  master_addr=node-0\n",
    }


@pytest.fixture(params=["script", "torchtitan", "torchrun", "elastic"])
def console(request, tmp_path):
    """Write a log of attempts, each as (first step, last step, how it ended), and return its report."""

    def write(*attempts):
        log = tmp_path / "console.log"
        log.write_text(
            "".join(
                _starts(number, first)[request.param] + _steps(first, last) + end
                for number, (first, last, end) in enumerate(attempts, 1)
            )
        )
        return logs.analyze(log)

    return write


def test_a_job_that_completed_after_failed_attempts_says_so(console):
    report = console((1, 45, _CRASH + _ENDED), (41, 85, _CRASH + _ENDED), (81, 90, "Training completed\n"))
    assert (report.verdict.status, report.verdict.sentence) == (
        "ok", "The training completed after step 90, at attempt 3: 2 failed before",
    )  # fmt: skip
    [finding] = [finding for finding in report.findings if finding.id == "logs.failed_attempts"]
    assert "device-side assert" in finding.title
    assert "45, 85" in finding.why
    assert (finding.ranks, finding.step) == ([6], 85)


def test_the_verdict_is_about_the_last_attempt(console):
    report = console((1, 45, _CRASH + _ENDED), (41, 60, _OTHER + _ENDED))
    assert report.verdict.ranks == [2]
    assert "part-7.bin" in report.verdict.sentence
    assert [finding.id for finding in report.findings].count("logs.failed_attempts") == 1


def test_one_attempt_has_no_others(console):
    report = console((1, 45, _CRASH + _ENDED))
    assert report.verdict.ranks == [6]
    assert "logs.failed_attempts" not in [finding.id for finding in report.findings]


def test_attempts_that_die_after_equal_numbers_of_steps_point_to_the_data(tmp_path):
    ends = [(1, 45), (41, 85), (81, 125)]
    text = "".join(_starts(1, first)["torchtitan"] + _steps(first, last) + _CRASH + _ENDED for first, last in ends)
    (tmp_path / "console.log").write_text(text)
    [finding] = [f for f in logs.analyze(tmp_path / "console.log").findings if f.id == "logs.failed_attempts"]
    assert finding.why == "They ended after step 45, 85, each 45 steps after its start."


def test_a_step_is_the_last_one_that_any_rank_printed_above(tmp_path):
    (tmp_path / "console.log").write_text(_steps(1, 200) + _CRASH)
    [event, *_] = [e for e in logs.analyze(tmp_path / "console.log").data.events if e.rank == 6]
    assert event.step == 200
