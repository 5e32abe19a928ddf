"""Advice fits to what the text of a log says about the job: its settings, its GPUs, its system."""

from pathlib import Path

import pytest

from analyzers import logs
from analyzers.case.context import Context
from analyzers.failures.catalogue import known
from analyzers.failures.entry import headline, next_steps, sentence, write
from analyzers.logs.report import case_of

_UNUSED = """
{before}
Traceback (most recent call last):
  File "train.py", line 40, in main
    model = DDP(model{argument})
  File "train.py", line 52, in step
    loss = model(batch)
RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error \
indicates that your module has parameters that were not used in producing loss. You can enable unused parameter \
detection by passing the keyword argument `find_unused_parameters=True` to \
`torch.nn.parallel.DistributedDataParallel`, and by
making sure all `forward` function outputs participate in calculating loss.
"""


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("torchrun --nproc_per_node 4 train.py \\\n  --use-lora --lr=2e-5", "use_lora", "true"),
        ("torchrun --nproc_per_node 4 train.py \\\n  --use-lora --lr=2e-5", "--lr", "2e-5"),
        ("$ NCCL_DEBUG=INFO python train.py", "NCCL_DEBUG", "INFO"),
        ("Namespace(bf16=True, lr=0.1)", "bf16", "true"),
        ("  gradient_checkpointing: true\n  lr: 0.1", "gradient_checkpointing", "True"),
        ("{'use_reentrant': False}", "use_reentrant", "false"),
        ("export OMP_NUM_THREADS=1\n", "OMP_NUM_THREADS", "1"),
        ("num_workers ........... 0\n", "num_workers", "0"),
    ],
)
def test_settings_are_read_wherever_a_job_prints_them(text: str, name: str, value: str) -> None:
    assert Context(text).has(name, value)


@pytest.mark.parametrize(
    "text",
    [
        "Please pass use_reentrant=False or use_reentrant=True explicitly.",
        "You can set NCCL_DEBUG=INFO to see more.",
        "consider `num_workers=0`, which is slower",
        "model = Model(num_workers=0)\nmodel = Model(num_workers=4)",
    ],
)
def test_a_suggestion_is_no_setting_and_two_values_are_none(text: str) -> None:
    context = Context(text)
    assert not context.has("use_reentrant", "False")
    assert not context.has("NCCL_DEBUG", "INFO")
    assert not context.has("num_workers", "0")


def _steps(text: str) -> str:
    case = case_of(text)
    assert case is not None
    entry, case = known(case)
    return " ".join(next_steps(entry, case))


def test_what_the_source_shows_to_be_set_is_no_advice() -> None:
    open_ = _steps(_UNUSED.format(before="", argument=""))
    done = _steps(_UNUSED.format(before="", argument=", find_unused_parameters=True"))
    assert "find_unused_parameters=True" in open_
    assert "find_unused_parameters=True" not in done or "set already" in done
    assert done


def test_what_stands_far_above_the_failure_counts_too(tmp_path: Path) -> None:
    noise = "".join(f"INFO line {n} of the start-up of the program, with nothing in it\n" for n in range(300))
    failure = _UNUSED.format(before="", argument="")
    log = tmp_path / "job.log"
    for argument in ("", "--find_unused_parameters true"):
        log.write_text(f"{noise}torchrun --nproc_per_node 2 train.py {argument}\n{noise}{failure}")
        said = logs.analyze(log).verdict.next
        assert ("pass `find_unused_parameters=True`" in said) == (not argument)
        assert said


def test_bf16_is_qualified_for_a_gpu_without_it() -> None:
    failure = '  File "train.py", line 3, in <module>\nValueError: Attempting to unscale FP16 gradients.\n'
    plain = "Traceback (most recent call last):\n" + failure
    assert "has no bf16 of its own" in _steps("GPU 0: Tesla V100-SXM2-32GB\n" + plain)
    assert "has no bf16 of its own" not in _steps("GPU 0: NVIDIA A100-SXM4-80GB\n" + plain)


def test_what_windows_does_not_have_is_no_advice_there() -> None:
    failure = (
        "Traceback (most recent call last):\n"
        '  File "{}", line 3, in <module>\n'
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED\n"
    )
    assert "LD_LIBRARY_PATH" in _steps(failure.format("/home/me/train.py"))
    assert "LD_LIBRARY_PATH" not in _steps(failure.format("C:\\Users\\me\\train.py"))


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("first = files[0]", "files is empty"),
        ("first = files[0][i]", "print the index and the length"),
    ],
)
def test_a_list_is_called_empty_only_where_no_other_index_stands_in_the_line(line, advice):
    frame = f'  File "/w/data.py", line 9, in read\n    {line}\n'
    case = case_of(f"Traceback (most recent call last):\n{frame}IndexError: list index out of range\n")
    assert case is not None
    entry, case = known(case)
    assert any(advice in step for step in next_steps(entry, case))


@pytest.mark.parametrize("is_own", [True, False])
def test_advice_on_a_line_names_the_package_where_no_frame_is_the_users(is_own):
    packages = "/e/lib/python3.11/site-packages"
    frames = [
        ("/w/train.py" if is_own else f"{packages}/swift/cli/sft.py", "main"),
        (f"{packages}/swift/trainers/mixin.py", "training_step"),
        (f"{packages}/swift/model/patch.py", "forward"),
    ]
    shown = "".join(f'  File "{file}", line 5, in {function}\n    x.view(2, -1)\n' for file, function in frames)
    error = "RuntimeError: view size is not compatible with input tensor's size and stride"
    case = case_of(f"Traceback (most recent call last):\n{shown}{error}\n")
    assert case is not None
    entry, case = known(case)
    first = next_steps(entry, case)[0]
    assert (".reshape" in first) is is_own
    assert ("no frame shown is of your own code" in first and "swift" in first) is not is_own


_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB of"
    " which 1.10 GiB is free. Of the allocated memory 21.90 GiB is allocated by PyTorch, and 120.00 MiB is reserved by"
    " PyTorch but unallocated."
)


def _raised(error, *frames):
    shown = "".join(f'  File "{file}", line 5, in {function}\n    {line}\n' for file, function, line in frames)
    return f"Traceback (most recent call last):\n{shown}{error}\n"


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        (
            "TypeError: DataCollatorWithPacking.__init__() got an unexpected keyword argument 'tokenizer'",
            "processing_class",
        ),
        (
            _raised("IndexError: index out of range in self", ("/w/train.py", "main", "x = emb(ids)")),
            "CUDA reports it later",
        ),
        (
            _raised(_OOM, ("/w/seg.py", "step", "loss = cross_entropy(out, mask)"), ("/e/f.py", "cross_entropy", "r")),
            "vocabulary",
        ),
        (
            _raised(
                "socket.gaierror: [Errno -3] Temporary failure in name resolution",
                ("/w/train.py", "main", "urlretrieve(url, path)"),
                ("/usr/lib/python3.11/urllib/request.py", "urlopen", "r"),
                ("/usr/lib/python3.11/socket.py", "getaddrinfo", "r"),
            ),
            "MASTER_ADDR",
        ),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file",
            "huggingface.co cannot be reached",
        ),
        ("RuntimeError: \"cholesky_cuda\" not implemented for 'Half'", "on the CPU"),
        ("RuntimeError: No backend type associated with device type cuda", "CPU tensor"),
        ("[rank0]: OSError: [Errno 5] Input/output error", "The disk"),
    ],
)
def test_what_a_text_does_not_show_is_not_said(text, absent):
    case = case_of(text)
    assert case is not None
    entry, case = known(case)
    said = [headline(entry, case), sentence(entry, case), write(entry.why, case), *next_steps(entry, case)]
    assert not any(absent in part for part in said), said
