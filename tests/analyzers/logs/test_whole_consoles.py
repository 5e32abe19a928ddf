"""Whole consoles as people show them: what stands beside the failure must not change what is said of it."""

import pytest

from analyzers import incident, logs, steps
from analyzers.errors import InputError

WARNING = "[2024-02-15 02:41:52,204] [0/1] torch._inductor.fx_passes.split_cat: [WARNING] example value absent\n"
OOM = """Traceback (most recent call last):
  File "/home/me/train.py", line 299, in <module>
    logits, loss = model(X, Y)
  File "/home/me/model.py", line 207, in forward
    x = self.attention(x)
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 960.00 MiB. GPU 0 has a total capacity of 10.75 GiB\
 of which 824.50 MiB is free. Process 592595 has 5.84 GiB memory in use. Process 594201 has 4.10 GiB memory in use. Of\
 the allocated memory 5.08 GiB is allocated by PyTorch, and 8.42 MiB is reserved by PyTorch but unallocated.
"""
INTERRUPTED = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    pid, sts = os.waitpid(self.pid, flag)
KeyboardInterrupt
Traceback (most recent call last):
  File "<string>", line 1, in <module>
  File "/venv/lib/python3.10/multiprocessing/spawn.py", line 116, in spawn_main
    exitcode = _main(fd, parent_sentinel)
  File "/venv/lib/python3.10/multiprocessing/spawn.py", line 126, in _main
    self = reduction.pickle.load(from_parent)
_pickle.UnpicklingError: pickle data was truncated
"""


@pytest.fixture
def read(tmp_path):
    """Fixture: a function from the text of a console to the report on it."""

    def report(text):
        (tmp_path / "console.log").write_text(text)
        return logs.analyze(tmp_path / "console.log")

    return report


def test_a_warning_of_another_logger_above_a_traceback_did_not_catch_it(read):
    verdict = read("step 0: train loss 12.5\n" + WARNING + OOM).verdict
    assert (verdict.kind, verdict.failure) == ("oom", "memory.other_processes")
    assert "went on" not in verdict.sentence


def test_a_warning_about_the_error_itself_caught_it(read):
    caught = "12:01 WARNING could not train on this batch, skipping it\n" + OOM
    report = read(f"step: 1 loss: 3.0\n{caught}step: 2 loss: 2.9\nstep: 3 loss: 2.8\n")
    assert report.verdict.kind != "oom"


@pytest.mark.parametrize(
    "end", ["Training done in 668.06 seconds.", "Training has finished", "Finished Training", "Training is complete!"]
)
def test_a_script_says_in_its_own_words_that_it_is_done(read, end):
    rows = "".join(f"[Step {step}/9] Loss: {5 - step / 10} | Tokens/s: 421\n" for step in range(1, 10))
    assert read(f"{rows}{end}\nPeak GPU Mem (GB): 15.81\n").verdict.kind == "healthy"


@pytest.mark.parametrize(
    "line", ["Training done for epoch 3", "Training finished at step 7, evaluating", "Finished Training epoch 1"]
)
def test_the_end_of_a_part_is_not_that_of_the_training(read, line):
    assert read(f"step: 1 loss: 3.0\n{line}\nstep: 2 loss: 2.9\n").verdict.kind == "unknown"


def test_what_failed_before_a_training_completed_is_not_hidden(read):
    other = "Traceback (most recent call last):\n  File \"/home/me/a.py\", line 1, in <module>\nKeyError: 'peft'\n"
    verdict = read(f"{other}{{'loss': 0.5}}\n{{'train_runtime': 21.1, 'train_loss': 0.5}}\n").verdict
    assert verdict.kind == "healthy"
    assert "1 error printed before did not end it, first: KeyError: 'peft'" in verdict.sentence


def test_an_interruption_explains_what_spawned_children_could_not_read(read):
    assert read(INTERRUPTED).verdict.failure == "processes.keyboard_interrupt"
    alone = read(INTERRUPTED.partition("KeyboardInterrupt\n")[2])
    assert alone.verdict.failure == "data.spawned_child"


def test_a_list_that_is_cut_has_no_part_of_a_number(read):
    numbers = " ".join(map(str, range(100, 400)))
    text = (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.\n"
        f"Parameter indices which did not receive grad for rank 0: {numbers}\n"
    )
    report = read(f'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in main\n{text}')
    names = [event.facts.name for event in report.data.events if event.facts.name]
    assert set(names[0].removesuffix(" …").split()) <= set(numbers.split())
    assert "100, 101, 102, 103, 104, 105, 106, 107 and more" in report.verdict.sentence


def test_a_pool_that_unmapped_its_memory_is_not_taken_for_windows(read):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.83 GiB. GPU 0 has a total capacity of 39.56"
        " GiB of which 4.46 GiB is free. Including non-PyTorch memory, this process has 34.90 GiB memory in use. Of the"
        " allocated memory 50.34 GiB is allocated by PyTorch, and 169.71 MiB is reserved by PyTorch but unallocated.\n"
    )
    report = read(text)
    assert report.verdict.failure != "memory.spilled"
    said = f"{report.verdict.sentence} {report.verdict.next} {report.findings[0].why}"
    assert "Windows" not in said
    assert "50.3 GiB" not in report.findings[0].why


def test_a_first_row_that_is_nan_has_no_step_before(tmp_path):
    rows = [
        f"{{'loss': 0.0, 'grad_norm': nan, 'learning_rate': {rate}e-06, 'epoch': 0.0{rate}}}" for rate in range(1, 9)
    ]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    [finding] = [one for one in steps.analyze(tmp_path).findings if one.id == "steps.nonfinite_loss"]
    assert "in the first row of the log already" in finding.title
    assert "step before" not in finding.next
    assert "checkpoint" not in finding.next


def test_the_module_that_refuses_a_name_is_not_the_one_that_asks(read):
    site = "/venv/lib/python3.8/site-packages"
    text = (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 58, in __getitem__\n    self.data[0]\n'
        f'  File "{site}/datasets/features/image.py", line 189, in decode_example\n    PIL.Image.ExifTags\n'
        f'  File "{site}/PIL/Image.py", line 76, in __getattr__\n    raise AttributeError(name)\n'
        "AttributeError: module 'PIL.Image' has no attribute 'ExifTags'\n"
    )
    assert read(text).verdict.sentence.startswith("Datasets asks PIL.Image for ExifTags")


def test_a_warning_at_the_start_is_not_the_end(read):
    warned = (
        "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py:118: UserWarning: CUDA initialization: CUDA driver"
        " initialization failed, you might not have a CUDA gpu.\n"
    )
    end = (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 626, in main\n    trainer.train()\n'
        "FileNotFoundError: [Errno 2] No such file or directory: 'out/checkpoint-1000/trainer_state.json'\n"
    )
    assert "trainer_state.json" in read(warned + end).verdict.sentence
    assert read(warned).verdict.failure == "startup.driver_unreachable"


def test_the_last_error_of_nccl_says_what_failed(read):
    text = (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled cuda error (run with"
        " NCCL_DEBUG=INFO for details), NCCL version 2.27.3\n[rank0]: ncclUnhandledCudaError: Call to CUDA function"
        " failed.\n[rank0]: Last error:\n[rank0]: Failed to CUDA calloc async 4 bytes\n"
    )
    assert read(text).verdict.failure == "memory.nccl_buffers"


def test_other_numbers_of_a_row_may_be_nan(read):
    row = "{'loss': 0.7, 'rewards/chosen': nan, 'logps/chosen': nan, 'epoch': 0.5}\n"
    verdict = read(row * 3 + "{'train_runtime': 4730.6, 'train_loss': 0.7, 'epoch': 1.0}\n").verdict
    assert verdict.kind == "nonfinite_loss"
    assert verdict.sentence.endswith("rewards/chosen is nan in the first")
    assert "gradient" not in verdict.next
    assert verdict.next
    assert read("[INFO] ep=20 step=180/193 L=nan mfm=nan top=1.25\n").verdict.kind == "nonfinite_loss"


def test_one_first_row_that_sums_over_other_steps_is_no_level(read):
    rows = [f"step {step} | loss 13.{step} | lr 1e-4 | mfu 37.4{step % 10}%" for step in range(11, 40)]
    assert read("\n".join(["step 10 | loss 1.47 | lr 1e-4 | mfu 114.2%", *rows]) + "\n").verdict.kind != "loss_spike"
    assert read("\n".join(["step 10 | loss 1.47 | lr 1e-4 | mfu 37.2%", *rows]) + "\n").verdict.kind == "loss_spike"


def test_the_row_in_which_workers_start_is_no_waiting(read):
    first = "Epoch: [7] [   0/12614] lr: 0.0001 loss: 0.9 time: 60.1 data: 59.9\n"
    rows = "".join(f"Epoch: [7] [{n:4}0/12614] lr: 0.0001 loss: 0.8 time: 0.20 data: 0.0003\n" for n in range(1, 60))
    assert read(first + rows).verdict.kind != "data_time"


def test_a_loss_near_zero_goes_up_and_down(tmp_path):
    losses = [0.012, 0.0083, 0.0096, 0.0303, 0.0064, 0.0083, 0.0145, 0.0191, 0.0002, 0.0001] * 12
    losses += [0.0002, 0.0003] * 4 + [0.0137] + [0.0002] * 6
    rows = [f"{{'loss': {loss}, 'learning_rate': 1e-05, 'epoch': {n / 100}}}" for n, loss in enumerate(losses)]
    (tmp_path / "train.log").write_text("\n".join(rows) + "\n")
    assert not [one for one in steps.analyze(tmp_path).findings if one.id == "steps.loss_spike"]


def test_a_worker_that_was_killed_in_the_same_chain_says_how(read):
    killed = "RuntimeError: DataLoader worker (pid 71096) is killed by signal: {how}.\n"
    later = (
        "\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        '  File "/home/me/train.py", line 126, in train\n    for batch in loader:\n'
        "RuntimeError: DataLoader worker (pid(s) 71096) exited unexpectedly\n"
    )
    frame = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 126, in train\n    next(it)\n'
    assert read(frame + killed.format(how="Segmentation fault") + later).verdict.failure == "data.worker_crashed"
    assert read(frame + killed.format(how="Terminated") + later).verdict.failure == "data.worker_terminated"


def test_a_rank_that_generates_its_data_is_preparing_whatever_the_number_of_the_wait(read):
    bar = "Generating train split: {n} examples [16:08, 17.25 examples/s]"
    wait = (
        "[rank1]:[E922 03:32:06.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=875, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800011"
        " milliseconds before timing out.\n"
    )
    verdict = read("\n".join(bar.format(n=n) for n in (902, 904)) + "\n" + bar.format(n=908) + wait).verdict
    assert verdict.failure == "collectives.preparation"


def test_a_frame_that_a_console_wrapped_names_its_line(read):
    folder = "/weka/scratch/groupab1/mkeller7/dmaier3/DeepMagnet/src"
    lines = [
        "Traceback (most recent call last):",
        f'  File "{folder}/models/train_operator_on_all_meshes.py", line 236, in <module>',
        "    main()",
        f'  File "{folder}/models/deeponet_with_branches_and_trunks.py", line 142, in forward',
        "    return self.trunk(x)",
        f'  File "{folder}/models/layers_of_the_trunk_of_deeponet.py", line 14, in trunk',
        "    return x @ self.weight",
        "ValueError: bad shapes",
    ]
    width = 78
    wrapped = [line[at : at + width] for line in lines for at in range(0, len(line), width)]
    assert "layers_of_the_trunk_of_deeponet.py:14" in read("\n".join(wrapped) + "\n").verdict.sentence


def test_a_pasted_message_is_answered(tmp_path):
    (tmp_path / "message.txt").write_text(
        "RuntimeError: Trying to create tensor with negative dimension -4: [2, -4, 64]\n"
    )
    assert incident.analyze(tmp_path / "message.txt").verdict.failure == "autograd.negative_length"


@pytest.mark.parametrize("name", ["notes.txt", "README"])
def test_other_text_is_none(tmp_path, name):
    (tmp_path / name).write_text("The Error of our ways.\nAn Exception to the rule\nErrors: none\n")
    with pytest.raises(InputError):
        incident.analyze(tmp_path / name)


def test_no_text_of_any_length_fills_the_answer(read):
    digits = "9" * 5000
    report = read(f"RuntimeError: shape '[{digits}, 3]' is invalid for input of size {digits}\n")
    assert len(report.verdict.sentence) < 3000
    assert len(report.verdict.headline) <= 90


def test_rows_of_a_finished_run_are_not_those_before(read):
    def run(value, count):
        rows = [f"{{'loss': {value}, 'grad_norm': {value}, 'epoch': {n / 10}}}" for n in range(1, count)]
        return "\n".join([*rows, f"{{'train_runtime': 99.1, 'train_loss': 0.2, 'epoch': {count / 10}}}"]) + "\n"

    verdict = read(run(0.18, 40) + run("nan", 20).rpartition("{'train_runtime'")[0]).verdict
    assert verdict.kind == "nonfinite_loss"
    assert "rows before are finite" not in verdict.next


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_log_that_powershell_wrote_is_read(tmp_path, encoding):
    text = (
        ".\\python.exe : Traceback (most recent call last):\nAt line:1 char:1\n"
        '  File "C:\\work\\train.py", line 7, in <module>\n    print("\u2713 Models loaded.")\n'
        "UnicodeEncodeError: 'charmap' codec can't encode character '\\u2713' in position 0: character maps to\n"
    )
    order = b"\xfe\xff" if encoding.endswith("be") else b""
    (tmp_path / "train.log").write_bytes(order + text.encode(encoding))
    report = logs.analyze(tmp_path / "train.log")
    assert report.verdict.failure == "data.text_encoding"
    assert "PYTHONUTF8" in report.verdict.next
    assert not report.data.files[0].binary
