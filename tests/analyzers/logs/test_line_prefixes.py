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


def test_a_process_may_have_other_names_beside_its_number(tmp_path):
    log = tmp_path / "job.log"
    prefix = "(VllmWorker rank=0 pid=1402) ERROR 07-01 19:57:30 [multiproc_executor.py:492] "
    log.write_text("".join(f"{prefix}{line}\n" for line in _TRACEBACK[1:]))
    [event] = logs.analyze(log).data.events
    assert (event.message, event.source) == ("KeyError: 'labels'", "/app/train.py:7")


def test_an_exception_may_follow_a_progress_bar(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("  0%|          | 0/7800 [00:00<?, ?it/s]RuntimeError: the frobnicator is not attached\n")
    assert "the frobnicator is not attached" in logs.analyze(log).verdict.headline


_NOTEBOOKS = {
    "old": """\
ZeroDivisionError                         Traceback (most recent call last)
<ipython-input-14-3a5fc1333781> in <cell line: 5>()
      3 model = Net()
----> 5 model.fit(
      6   data=None

/usr/local/lib/python3.10/dist-packages/zoo/trainer.py in fit(self, data)
    452         self.start()
--> 454         self.run(1 / 0)

ZeroDivisionError: division by zero
""",
    "new": """\
ZeroDivisionError                         Traceback (most recent call last)
Cell In[14], line 5
      3 model = Net()
----> 5 model.fit(

File /opt/lib/python3.10/site-packages/zoo/trainer.py:454, in Trainer.fit(self, data)
    452 self.start()
--> 454 self.run(1 / 0)

ZeroDivisionError: division by zero
""",
    "plain": """\
Traceback (most recent call last):
  File "<ipython-input-14-3a5fc1333781>", line 5, in <module>
    model.fit(None)
  File "/opt/lib/python3.10/site-packages/zoo/trainer.py", line 454, in fit
    self.run(1 / 0)
ZeroDivisionError: division by zero
""",
}


@pytest.mark.parametrize("name", _NOTEBOOKS)
def test_a_cell_of_a_notebook_is_the_users_code(tmp_path, name):
    log = tmp_path / "cell.log"
    log.write_text(_NOTEBOOKS[name])
    [event] = logs.analyze(log).data.events
    assert (event.message, event.source) == ("ZeroDivisionError: division by zero", "cell 14:5")
    assert event.calls[-1].partition("zoo/trainer.py:454:")[2].endswith("fit")
