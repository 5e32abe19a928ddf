"""Lines that look like errors and that no rule reads are quoted; the logs are then not said to be without failure."""

import pytest

from analyzers import logs
from analyzers.report import Status

ROWS = "".join(f"step {n} loss 2.{n} grad_norm 0.{n}\n" for n in range(1, 9))


@pytest.mark.parametrize(
    "line",
    [
        "Memory access fault by the accelerator on address 0x7f5e50c00000. Reason: Unknown.",
        "  Warning  Evicted   109s  kubelet   Pod ephemeral local storage usage exceeds the total limit of 5Gi.",
        "[E socket.cpp:1] the frobnicator gave up",
        "2026-01-02 03:04:05 ERROR storage.mount: bucket went away",
        "resolver: can't resolve 'job-master-0': Name does not resolve",
        "some.so: undefined symbol: cblas_sgemm_pack",
    ],
)
def test_a_line_that_looks_like_an_error_is_quoted(tmp_path, line):
    (tmp_path / "train.log").write_text(ROWS + line + "\n")
    report = logs.analyze(tmp_path / "train.log")
    assert report.verdict.status is Status.UNKNOWN
    assert line.split()[-1] in report.verdict.sentence
    assert [found.evidence[0].text for found in report.findings if found.id == "logs.unread"] == [
        f"line 9: {line.strip()}"
    ]


def test_a_traceback_without_its_last_line_is_a_failure(tmp_path):
    frame = '  File "/home/user/train.py", line 12, in step\n    loss.backward()\n'
    (tmp_path / "train.log").write_text(f"{ROWS}Traceback (most recent call last):\n{frame}")
    verdict = logs.analyze(tmp_path / "train.log").verdict
    assert verdict.sentence.startswith("A process failed in step; the line that names the exception is missing")
    assert "user/train.py:12" in verdict.sentence


@pytest.mark.parametrize(
    "line",
    [
        "INFO retrying: request failed with 503",
        "evaluation: 0 errors, error_rate 0.12",
        "UserWarning: lr_scheduler.step() failed to find an optimizer",
        "config: raise_on_error=False failed=0",
        "word error rate 0.31, mean absolute Error 0.2 in 5 s"[:34],
    ],
)
def test_a_line_that_only_mentions_errors_is_not_quoted(tmp_path, line):
    (tmp_path / "train.log").write_text(ROWS + line + "\n")
    report = logs.analyze(tmp_path / "train.log")
    assert not [found for found in report.findings if found.id == "logs.unread"]
    assert report.verdict.sentence.startswith("Nothing that is tested here is wrong in 8 rows up to step 8")


def test_many_such_lines_are_counted_and_few_are_kept(tmp_path):
    different = "".join(f"ERROR part {'x' * n}\n" for n in range(1, 200))
    (tmp_path / "train.log").write_text(different + "ERROR part 7\n" * 9)
    report = logs.analyze(tmp_path / "train.log")
    assert report.data.files[0].unread_count == 200
    assert len(report.data.files[0].unread) == 20
    assert report.verdict.sentence.startswith("200 lines look like errors")


def test_a_line_that_looks_like_an_error_comes_before_a_traceback_that_is_cut_off(tmp_path):
    frame = '  File "/home/user/train.py", line 12, in step\n    loss.backward()\n'
    error = "ERROR:root:Number of shards requested is more than the number of shards available\n"
    (tmp_path / "train.log").write_text(f"{error}Traceback (most recent call last):\n{frame}")
    verdict = logs.analyze(tmp_path / "train.log").verdict
    assert "Number of shards requested" in verdict.headline
    assert verdict.sentence.endswith(error.strip())


def test_a_log_may_begin_with_a_line_of_json(tmp_path):
    (tmp_path / "train.log").write_text('{"epochs":2,"use_amp":false}\nmy.OutOfResources: no\nValueError: odd\n')
    assert "ValueError: odd" in logs.analyze(tmp_path / "train.log").verdict.sentence


def test_a_traceback_may_stand_behind_a_level_or_a_time(tmp_path):
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/user/core.py", line 506, in run',
        "ValueError: no room",
    ]
    for before in ("ERROR 06-30 13:53:19 [core.py:515] ", "2022-01-23 02:08:36.029 "):
        (tmp_path / "train.log").write_text("".join(f"{before}{line}\n" for line in lines))
        assert "user/core.py:506" in logs.analyze(tmp_path / "train.log").verdict.sentence


def test_rows_that_were_not_finite_are_counted_where_later_ones_are(tmp_path):
    (tmp_path / "train.log").write_text("step: 3 loss: 0.5\nstep: 4 loss: nan\nstep: 5 loss: 0.4\nstep: 6 loss: 0.3\n")
    report = logs.analyze(tmp_path / "train.log")
    assert report.verdict.sentence.startswith("1 of 4 rows up to step 6 has a loss or a gradient that is not finite")
    assert "no failure" not in report.verdict.sentence


def test_a_line_that_the_answer_quotes_is_not_listed_again(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(
        "ptxas fatal   : Value sm_120 is not defined for option gpu-name\nsome.so: undefined symbol: sgemm\n"
        'Traceback (most recent call last):\n  File "/a/train.py", line 3, in main\n    go()\n'
    )
    report = logs.analyze(log)
    assert "sm_120" in report.verdict.sentence
    [unread] = [found for found in report.findings if found.id == "logs.unread"]
    assert unread.title.startswith("1 line with the words of an error")
    assert "sgemm" in unread.title
