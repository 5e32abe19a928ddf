"""What loggers, containers and engines put before each line of a traceback hides neither the exception nor its text."""

import pytest

from analyzers import logs

_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 7, in <module>',
    "    main()",
    "    ^^^^^^",
    "",
    "KeyError: 'labels'",
)
_NUMBERED = "(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:2{n} [core.py:71{n}] "


@pytest.mark.parametrize(
    "prefix",
    [
        *("", "worker_1  | ", "trainer-0 trainer ", "2024-05-01T10:00:0{n}.123456789Z stderr F ", _NUMBERED),
        *("2024-05-01 10:00:0{n},123 - root - ERROR - ", "I0501 10:00:0{n}.1 7 train.py:9] ", "<stderr> "),
    ],
)
def test_lines_of_a_traceback_may_all_have_a_prefix(tmp_path, prefix):
    log = tmp_path / "job.log"
    log.write_text("".join(f"{prefix.format(n=n % 10)}{line}".rstrip() + "\n" for n, line in enumerate(_TRACEBACK)))
    [event] = logs.analyze(log).data.events
    assert (event.message, event.source, event.function) == ("KeyError: 'labels'", "/app/train.py:7", "<module>")


def test_a_prefix_of_the_first_line_alone_is_no_prefix_of_the_others(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("ERROR:root:training failed: " + "\n".join(_TRACEBACK) + "\nhint: add a column\n")
    [event] = logs.analyze(log).data.events
    assert (event.message, event.facts.hint) == ("KeyError: 'labels'", "add a column")


def test_further_lines_of_a_message_lose_the_prefix_too(tmp_path):
    log = tmp_path / "job.log"
    lines = [*_TRACEBACK[:-1], "ValueError: no such kernel", "it needs compute capability 9.0"]
    log.write_text("".join(f"{_NUMBERED.format(n=n % 10)}{line}\n" for n, line in enumerate(lines)))
    [event] = logs.analyze(log).data.events
    assert (event.message, event.details) == ("ValueError: no such kernel", "it needs compute capability 9.0")


def test_a_mapped_file_of_weights_is_no_shared_memory_of_a_worker(tmp_path):
    log = tmp_path / "job.log"
    said = "RuntimeError: unable to mmap 5368709120 bytes from file <{}>: Cannot allocate memory (12)"
    log.write_text(said.format("/models/part-1.safetensors") + "\n")
    assert logs.analyze(log).verdict.kind != "dataloader_worker"
    log.write_text(said.format("/torch_4711_2_3") + "\n")
    assert logs.analyze(log).verdict.kind == "dataloader_worker"
