"""Check what is said of attention that calls PyTorch's fused operator and does not get its fused kernel.

`python -m benchmarks.advice.attention_fallbacks [--kept-aside]`: each case trains a small attention on the CPU, where
the operators are real. Its trace is analyzed as it is, as if a GPU had run each operator's kernel, and without shapes;
its memory snapshot with the stacks of operators. Printed is what is said of attention, beside what an expert wants.
"""

import argparse
import copy
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from analyzers import memory, run, traces
from workbench.recorders.memory.recorder import MemoryRecorder

KEPT_ASIDE, STEPS = 3, 3
SLOWER = 4.0
"""How many times as long as the operator its kernel runs, so that the device is what a step waits for."""
BATCH, HEADS, LENGTH, DEPTH = 4, 4, 256, 64
sdpa = functional.scaled_dot_product_attention
KERNELS = {
    "aten::bmm": "ampere_sgemm_64x64_tn", "aten::mm": "ampere_sgemm_64x64_nn", "aten::addmm": "ampere_sgemm_64x64_nt",
    "aten::_softmax": "void softmax_warp_forward<float>", "aten::mul": "vectorized_elementwise_kernel<MulFunctor>",
    "aten::add": "vectorized_elementwise_kernel<AddFunctor>", "aten::div": "vectorized_elementwise_kernel<DivFunctor>",
    "aten::_softmax_backward_data": "void softmax_warp_backward<float>",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "pytorch_flash::flash_fwd_kernel",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "pytorch_flash::flash_bwd_kernel",
    "aten::native_dropout": "fused_dropout_kernel_vec", "aten::native_layer_norm": "vectorized_layer_norm_kernel",
}  # fmt: skip


class Projected(nn.Module):
    """Attention with projections; the operator itself is given."""

    def __init__(self, operator: Callable[[Tensor, Tensor, Tensor], Tensor], heads: int = HEADS, **sizes: int) -> None:
        super().__init__()
        self.operator, self.heads, width = operator, heads, HEADS * DEPTH
        self.keys = sizes.get("keys", heads)
        depth = sizes.get("depth", DEPTH)
        self.q, self.k = nn.Linear(width, heads * depth), nn.Linear(width, self.keys * depth)
        self.v = nn.Linear(width, self.keys * sizes.get("values", depth))
        self.out = nn.Linear(heads * sizes.get("values", depth), width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x), self.heads), self.split(self.k(x), self.keys), self.split(self.v(x), self.keys)
        return self.out(self.operator(q, k, v).transpose(1, 2).flatten(2))

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class OneHead(nn.Module):
    """Attention whose tensors have no dimension of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HEADS * DEPTH, 3 * HEADS * DEPTH)

    def forward(self, x: Tensor) -> Tensor:
        return sdpa(*self.qkv(x).chunk(3, -1))


class Relative(nn.Module):
    """Attention with a learned bias for each distance."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, HEADS, LENGTH, LENGTH))
        self.inner = Projected(lambda q, k, v: sdpa(q, k, v, attn_mask=self.bias))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Multihead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HEADS * DEPTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


def only_math(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(q, k, v, is_causal=True)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / DEPTH**0.5).softmax(-1) @ v


def in_double(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q.double(), k.double(), v.double(), dropout_p=0.1).float()


def swapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Give a value tensor whose last dimension is not contiguous."""
    return sdpa(q, k, v.transpose(-2, -1).contiguous().transpose(-2, -1), dropout_p=0.0)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, attn_mask=torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool))


def masked_dropout(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, attn_mask=torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool), dropout_p=0.2)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, enable_gqa=True)


class Case(NamedTuple):
    """A module, and the pattern that the advice must match on a CPU and on a GPU (empty: nothing is said of it)."""

    name: str
    module: Callable[[], nn.Module]
    on_cpu: str
    on_gpu: str

    @property
    def is_kept_aside(self) -> bool:
        """Whether no rule was tuned on this case."""
        return int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % KEPT_ASIDE == 0


FELL = r"(?i)math"
CASES = (
    Case("dropout", lambda: Projected(lambda q, k, v: sdpa(q, k, v, dropout_p=0.1)), FELL + ".*dropout", FELL),
    Case("encoder_layer", lambda: nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), FELL + ".*dropout", FELL),
    Case("three_dimensions", OneHead, FELL + ".*(4|four)", FELL + ".*(4|four)"),
    Case("learned_bias", Relative, FELL + ".*mask.*gradient", FELL + ".*(mask|bias)"),
    Case("values_of_another_size", lambda: Projected(sdpa, values=32), FELL + ".*head dim", FELL + ".*head dim"),
    Case("told_to", lambda: Projected(only_math), FELL + ".*(sdpa_kernel|setting)", FELL + ".*(sdpa_kernel|setting)"),
    Case("double_with_dropout", lambda: Projected(in_double), FELL + ".*dropout", FELL + ".*(float64|double)"),
    Case("odd_head_with_mask", lambda: Projected(masked, depth=30), "", FELL + ".*head dim.*(multiple|divisible)"),
    Case("grouped_queries_float32", lambda: Projected(grouped, keys=2), "", FELL + ".*enable_gqa"),
    Case("causal", lambda: Projected(lambda q, k, v: sdpa(q, k, v, is_causal=True)), "", ""),
    Case("padding_mask", lambda: Projected(masked), "", ""),
    Case("by_hand", lambda: Projected(by_hand), r"scaled_dot_product_attention", r"scaled_dot_product_attention"),
    Case("multihead_with_weights", Multihead, r"need_weights", r"need_weights"),
    Case("dropout_and_mask", lambda: Projected(masked_dropout), FELL + ".*dropout", FELL),
    Case("not_contiguous", lambda: Projected(swapped), FELL + ".*contiguous", FELL + ".*contiguous"),
)  # fmt: skip


def recorded(case: Case, folder: Path, *, fall_back: bool) -> tuple[dict[str, Any], Path]:
    """Train the case; return the trace, and the folder with the memory snapshot."""
    torch.manual_seed(0)
    model = case.module()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    backends = [SDPBackend.MATH] if fall_back else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(backends):
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            for _ in range(STEPS):
                train(model, optimizer)
                profiler.step()
        memory_recorder = MemoryRecorder(folder / "memory_snapshot", model, optimizer, freq=STEPS)
        # As on a device, the first step has Python frames, too.
        memory_recorder._history._first = False  # noqa: SLF001
        for number in range(1, STEPS + 1):
            with memory_recorder.step(number):
                train(model, optimizer)
        memory_recorder.close()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return json.loads(path.read_text()), folder


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(BATCH, LENGTH, HEADS * DEPTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def with_kernels(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the trace as if a GPU had run a kernel for each operator that does work."""
    made: list[dict[str, Any]] = []
    free = 0.0
    operators = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op" and e["name"] in KERNELS]
    for number, event in enumerate(sorted(operators, key=lambda e: e["ts"]), 1):
        launch = event["ts"] + event["dur"] / 2
        begin = max(free, launch + 5)
        free = begin + SLOWER * event["dur"]
        link = {"correlation": number, "External id": event["args"].get("External id", 0)}
        made.append(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "pid": event["pid"],
                "tid": event["tid"],
                "ts": launch,
                "dur": 1.0,
                "args": link,
            }
        )
        made.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": KERNELS[event["name"]],
                "pid": 0,
                "tid": 7,
                "ts": begin,
                "dur": free - begin,
                "args": link | {"device": 0, "stream": 7},
            }
        )
    device = {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "computeMinor": 0, "numSms": 108}
    return trace | {"traceEvents": trace["traceEvents"] + made, "deviceProperties": [device]}


def without_shapes(trace: dict[str, Any]) -> dict[str, Any]:
    """Return the trace as recorded without `record_shapes`."""
    bare = copy.deepcopy(trace)
    for event in bare["traceEvents"]:
        for key in [k for k in event.get("args", {}) if "Input" in k or "Concrete" in k]:
            del event["args"][key]
    return bare


def said_of_trace(trace: dict[str, Any], folder: Path) -> str:
    path = folder / "profile_traces" / "iteration_3" / "rank0_trace.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(trace))
    report = traces.analyze(run.discover(path.parent).of(run.Kind.TRACE))
    about = [f for f in report.findings if "attention" in f.id]
    return " ".join(f"{f.title}. {f.why} {f.next}" for f in about)


def said_of_memory(folder: Path) -> str:
    about = [f for f in memory.analyze(folder).findings if "attention" in f.id]
    return " ".join(f"{f.title}. {f.why} {f.next}" for f in about)


def answers(case: Case, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (kind of artefact, what must be said, what is said)."""
    trace, _ = recorded(case, folder, fall_back=False)
    yield "cpu", case.on_cpu, said_of_trace(trace, folder)
    yield "snapshot", general(case.on_cpu), said_of_memory(folder / "memory_snapshot")
    falls = bool(case.on_gpu) and case.on_gpu.startswith(FELL)
    if falls and not case.on_cpu:
        trace, _ = recorded(case, folder, fall_back=True)
    if falls or case.on_cpu == case.on_gpu:
        on_gpu = with_kernels(trace)
        yield "gpu", case.on_gpu, said_of_trace(on_gpu, folder)
        yield "gpu, no shapes", general(case.on_gpu), said_of_trace(without_shapes(on_gpu), folder)


def general(wanted: str) -> str:
    """Return what must be said where an artefact does not show the reason."""
    return FELL if wanted.startswith(FELL) else wanted and r"scaled_dot_product_attention|need_weights"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept-aside", action="store_true", help="run only the third that no rule was tuned on")
    parser.add_argument("--quiet", action="store_true", help="print the score alone")
    parser.add_argument("--only", default="", help="run only this case")
    options = parser.parse_args()
    right = total = 0
    for case in CASES:
        if case.is_kept_aside != options.kept_aside or options.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for kind, wanted, said in answers(case, Path(folder)):
                good = bool(re.search(wanted, said, re.DOTALL)) if wanted else not said
                right, total = right + good, total + 1
                if not options.quiet:
                    print(f"{'right' if good else 'WRONG'}  {case.name}, {kind}: {said or 'nothing'}", flush=True)
    print(f"{right} of {total} right", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
