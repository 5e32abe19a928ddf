"""The logs: messages on failed requests, as jobs print them, and what an expert would say first."""

from typing import NamedTuple

HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management"
    "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
TORCH = "/opt/conda/lib/python3.12/site-packages/torch/"


class Message(NamedTuple):
    """A log, and what its advice must and must not say (see `cases`)."""

    name: str
    text: str
    first: str = ""
    never: str = ""
    somewhere: str = ""
    title: str = ""
    healthy: bool = False


def traceback(*frames: tuple[str, int, str, str], error: str) -> str:
    """Return a traceback of (file, line, function, source), outermost frame first."""
    lines = ["Traceback (most recent call last):"]
    for file, line, function, source in frames:
        lines += [f'  File "{file}", line {line}, in {function}', f"    {source}"]
    return "\n".join([*lines, error, ""])


def out_of_memory(
    asked: str, total: str, free: str, process: str, allocated: str, cached: str, others: str = "", pools: str = ""
) -> str:
    """Return the text of PyTorch 2.5 to 2.8; `others` are the sentences on other processes."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {total}"
        f" of which {free} is free. {others}Including non-PyTorch memory, this process has {process} memory in use. Of"
        f" the allocated memory {allocated} is allocated by PyTorch, {pools}and {cached} is reserved by PyTorch but"
        f" unallocated.{HINT}"
    )


MAIN = ("/home/ana/llm/train.py", 198, "<module>", "main()")
STEP = ("/home/ana/llm/train.py", 142, "main", "train_step(model, batch)")
FORWARD = ("/home/ana/llm/train.py", 71, "train_step", "logits = model(batch.tokens)")
FULL = ("79.15 GiB", "11.06 MiB", "79.13 GiB", "77.20 GiB", "1.12 GiB")

MESSAGES = (
    Message(
        "log: another process",
        traceback(
            MAIN, STEP, FORWARD,
            error=out_of_memory("1.50 GiB", "79.15 GiB", "310.00 MiB", "31.12 GiB", "29.80 GiB", "512.00 MiB",
                                others="Process 918273 has 47.70 GiB memory in use. "),
        ),
        r"(?i)918273|other process|another process|nvidia-smi", never=r"expandable_segments:True",
    ),
    Message(
        "log: fragmented",
        traceback(MAIN, STEP, FORWARD,
                  error=out_of_memory("2.50 GiB", "79.15 GiB", "412.00 MiB", "78.75 GiB", "55.10 GiB", "22.40 GiB")),
        r"expandable_segments:True",
    ),
    Message(
        "log: cross-entropy",
        traceback(
            MAIN, STEP,
            ("/home/ana/llm/train.py", 73, "train_step", "loss = F.cross_entropy(logits.float(), labels)"),
            (TORCH + "nn/functional.py", 3494, "cross_entropy", "return torch._C._nn.cross_entropy_loss("),
            error=out_of_memory("15.66 GiB", *FULL),
        ),
        r"(?i)chunk|fused|in pieces|linear_cross_entropy",
    ),
    Message(
        "log: logits in float32",
        traceback(
            MAIN, STEP,
            ("/home/ana/llm/train.py", 72, "train_step", "loss = model.loss(batch)"),
            ("/home/ana/llm/model.py", 101, "loss", "logits = self.lm_head(hidden).float()"),
            error=out_of_memory("15.66 GiB", *FULL),
        ),
        r"(?i)chunk|fused|in pieces|linear_cross_entropy",
    ),
    Message(
        "log: small request in a cross-entropy",
        traceback(
            MAIN, STEP,
            ("/home/ana/llm/train.py", 73, "train_step", "loss = F.cross_entropy(scores, labels)"),
            (TORCH + "nn/functional.py", 3494, "cross_entropy", "return torch._C._nn.cross_entropy_loss("),
            error=out_of_memory("20.00 MiB", *FULL),
        ),
        r"(?i)batch|checkpointing|shard", never=r"(?i)chunked|linear_cross_entropy",
    ),
    Message(
        "log: optimizer state",
        traceback(
            MAIN, STEP,
            ("/home/ana/llm/train.py", 79, "train_step", "optimizer.step()"),
            (TORCH + "optim/optimizer.py", 487, "wrapper", "out = func(*args, **kwargs)"),
            (TORCH + "optim/adamw.py", 220, "step", "has_complex = self._init_group("),
            (TORCH + "optim/adamw.py", 178, "_init_group", 'state["exp_avg_sq"] = torch.zeros_like('),
            error=out_of_memory("256.00 MiB", *FULL),
        ),
        r"(?i)optimizer|shard|fsdp|zero", never=r"(?i)activation checkpointing|recompute",
    ),
    Message(
        "log: copies of a multi-tensor step",
        traceback(
            MAIN, STEP,
            ("/home/ana/llm/train.py", 79, "train_step", "optimizer.step()"),
            (TORCH + "optim/adamw.py", 812, "adamw", "func("),
            (TORCH + "optim/adamw.py", 610, "_multi_tensor_adamw",
             "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)"),
            error=out_of_memory("256.00 MiB", *FULL),
        ),
        r"foreach=False|fused=True", never=r"(?i)activation checkpointing|recompute",
    ),
    Message(
        "log: evaluation",
        traceback(
            MAIN,
            ("/home/ana/llm/train.py", 150, "main", "evaluate(model, loader)"),
            ("/home/ana/llm/train.py", 101, "evaluate", "logits = model(batch.tokens)"),
            ("/home/ana/llm/model.py", 97, "forward", "x = layer(x)"),
            error=out_of_memory("768.00 MiB", *FULL),
        ),
        r"(?i)no_grad|inference_mode|evaluation batch|evaluat",
    ),
    Message(
        "log: checkpoint gathered",
        traceback(
            MAIN,
            ("/home/ana/llm/train.py", 155, "main", "save_checkpoint(model, optimizer)"),
            ("/home/ana/llm/checkpoint.py", 58, "save_checkpoint", "state = get_model_state_dict(model, options)"),
            (TORCH + "distributed/checkpoint/state_dict.py", 1080, "get_model_state_dict", "return _get_model_state("),
            (TORCH + "distributed/_state_dict_utils.py", 190, "_iterate_state_dict", "ret = iter_object.full_tensor()"),
            error=out_of_memory("896.00 MiB", *FULL),
        ),
        r"(?i)cpu_offload|save_checkpoint|saving|sharded|gather", never=r"(?i)(smaller|half|halve).{0,20}batch",
    ),
    Message(
        "log: HIP",
        traceback(
            MAIN, STEP, FORWARD,
            error=out_of_memory("2.50 GiB", "191.98 GiB", "412.00 MiB", "191.50 GiB", "150.10 GiB", "40.90 GiB")
            .replace("CUDA out", "HIP out").replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
        ),
        r"expandable_segments:True", never=r"PYTORCH_CUDA_ALLOC_CONF",
    ),
    Message(
        "log: private pools",
        traceback(
            MAIN, STEP,
            ("/home/ana/llm/serve.py", 61, "capture", "graph.replay()"),
            error=out_of_memory("1.50 GiB", "79.15 GiB", "310.00 MiB", "78.84 GiB", "77.00 GiB", "420.00 MiB",
                                pools="with 41.70 GiB allocated in private pools (e.g., CUDA Graphs), "),
        ),
        r"(?i)graph|private pool",
    ),
    Message(
        "log: limited by a fraction",
        traceback(
            MAIN, STEP, FORWARD,
            error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity"
            " of 79.15 GiB of which 38.30 GiB is free. 40.00 GiB allowed; Including non-PyTorch memory, this process"
            " has 40.80 GiB memory in use. Of the allocated memory 38.90 GiB is allocated by PyTorch, and 412.00 MiB is"
            f" reserved by PyTorch but unallocated.{HINT}",
        ),
        r"(?i)fraction|allowed|limit",
    ),
    Message(
        "log: cuBLAS handle",
        traceback(MAIN, STEP, FORWARD,
                  error="RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        r"(?i)(another|other) process|smaller batch",
        somewhere=r"(?i)smaller batch|fraction",
    ),
    Message(
        "log: host memory",
        traceback(
            MAIN,
            ("/home/ana/llm/data.py", 44, "next_batch", "table = torch.empty(rows, width)"),
            error="RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate"
            " memory: you tried to allocate 206158430208 bytes. Error code 12 (Cannot allocate memory)",
        ),
        r"(?i)host|CPU|RAM", never=r"expandable_segments|(?i:gpu memory)",
    ),
    Message(
        "log: caught by a search for the batch",
        "trying batch size 64\nCUDA out of memory at batch size 64, trying 32\ntrying batch size 32\n"
        + "".join(f"step {n} loss {3 - n / 100:.3f} memory 61.2 GiB\n" for n in range(1, 40))
        + "training finished\n",
        healthy=True,
    ),
)  # fmt: skip
