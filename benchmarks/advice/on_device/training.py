"""A language model that trains on the simulated device, with the stacks that PyTorch records for its operators."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from benchmarks.advice.on_device.allocator import Block, Device, Frames, PoolId

HOME = "/home/ana/llm/"
TORCH = "/opt/conda/lib/python3.12/site-packages/torch/"
Line = tuple[str, str, int]
"""A Python frame: function, file, line."""


class Stacks(StrEnum):
    """What `torch.cuda.memory._record_memory_history(context=..., stacks=...)` records."""

    ALL = "all"
    PYTHON = "python"
    NATIVE = "c++"
    NONE = "none"


ALLOCATOR = (
    "torch::unwind::unwind()",
    "torch::CapturedTraceback::gather(bool, bool, bool)",
    "c10::{device}::{upper}CachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long, CUstream_st*)",
    "c10::{device}::{upper}CachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
    "at::detail::empty_generic(c10::ArrayRef<long>, c10::Allocator*, c10::DispatchKeySet, c10::ScalarType)",
)
ENGINE = (
    "torch::autograd::Node::operator()(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)",
    "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, torch::autograd::Node*)",
    "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
    "torch::autograd::python::PythonEngine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue> const&)",
    "execute_native_thread_routine",
    "clone",
)
TRAIN: tuple[Line, ...] = (("main", HOME + "train.py", 142), ("<module>", HOME + "train.py", 198))
CALL: tuple[Line, ...] = (
    ("_call_impl", TORCH + "nn/modules/module.py", 1790),
    ("_wrapped_call_impl", TORCH + "nn/modules/module.py", 1779),
)


@dataclass
class Recorder:
    """Makes the stacks of allocations, as far as `stacks` records them; `device` is the namespace of the allocator."""

    stacks: Stacks = Stacks.ALL
    device: str = "cuda"
    shared: dict[Line, dict[str, Any]] = field(default_factory=dict)

    def frames(self, operator: str, lines: Iterable[Line], native: Iterable[str] = ()) -> Frames:
        """Return a stack: the allocator, the operator, further `native` functions, then Python lines."""
        if self.stacks is Stacks.NONE:
            return []
        names = [name.format(device=self.device, upper=self.device.upper()) for name in ALLOCATOR]
        names += [f"at::_ops::{operator}::redispatch(c10::DispatchKeySet)", f"at::_ops::{operator}::call()"]
        native_frames = [self.frame((name, "??", 0)) for name in [*names, *native]]
        python_frames = [self.frame(line) for line in lines]
        return {
            Stacks.ALL: native_frames + python_frames,
            Stacks.PYTHON: python_frames,
            Stacks.NATIVE: native_frames,
        }[self.stacks]

    def backward(self, operator: str, node: str) -> Frames:
        """Return the stack of an operator that the autograd engine runs in its own thread."""
        return self.frames(operator, (), (f"torch::autograd::generated::{node}::apply(...)", *ENGINE))

    def gradient(self) -> Frames:
        """Return the stack of a gradient that autograd keeps."""
        return self.frames("empty_strided", (), ("torch::autograd::AccumulateGrad::apply(...)", *ENGINE))

    def frame(self, line: Line) -> dict[str, Any]:
        name, file, number = line
        return self.shared.setdefault(line, {"name": name, "filename": file, "line": number})


@dataclass
class Shape:
    """The shape of a decoder-only model and of its batch; `weight` and `compute` are bytes a number."""

    layers: int = 12
    width: int = 4096
    heads: int = 32
    vocabulary: int = 32000
    batch: int = 4
    sequence: int = 2048
    weight: int = 2
    compute: int = 2

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def hidden(self) -> int:
        """The bytes of one activation of the model's width."""
        return self.tokens * self.width * self.compute

    @property
    def layer_weights(self) -> tuple[tuple[str, int], ...]:
        """(line's key, bytes) of the weights of a layer."""
        square = self.width * self.width * self.weight
        return (("wqkv", 3 * square), ("wo", square), ("up", 4 * square), ("down", 4 * square))

    @property
    def parameter_bytes(self) -> int:
        embedding = self.vocabulary * self.width * self.weight
        return self.layers * sum(size for _, size in self.layer_weights) + 2 * embedding


MODEL = HOME + "model.py"
BUILD = {"wqkv": 31, "wo": 32, "up": 52, "down": 53, "embedding": 88, "head": 92}


@dataclass
class Trainer:
    """A training script on a simulated device. Its parts are called in the order of the case.

    `above` are the lines that call the model; `scores`: attention is written out, else it is the fused kernel.
    """

    device: Device
    shape: Shape = field(default_factory=Shape)
    recorder: Recorder = field(default_factory=Recorder)
    above: tuple[Line, ...] = (("train_step", HOME + "train.py", 71), *TRAIN)
    scores: bool = False
    float_logits: bool = True
    pool: PoolId = (0, 0)
    weights: list[Block] = field(default_factory=list)
    gradients: list[Block] = field(default_factory=list)
    state: list[Block] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def new(self, size: int, operator: str, *lines: Line) -> Block:
        called = (
            f"torch::autograd::VariableType::(anonymous namespace)::{operator}(c10::DispatchKeySet, at::Tensor const&)",
            f"torch::autograd::THPVariable_{operator}(_object*, _object*, _object*)",
        )
        return self.device.alloc(size, self.recorder.frames(operator, lines, called), pool=self.pool)

    def build(self, lines: tuple[Line, ...] = (("build_model", HOME + "train.py", 120), *TRAIN)) -> None:
        """Allocate the weights."""
        linear = ("__init__", TORCH + "nn/modules/linear.py", 106)
        self.weights.append(self._weight("embedding", ("__init__", TORCH + "nn/modules/sparse.py", 167), lines))
        for _ in range(self.shape.layers):
            self.weights += [
                self.new(size, "empty_memory_format", linear, ("__init__", MODEL, BUILD[name]), *lines)
                for name, size in self.shape.layer_weights
            ]
        self.weights.append(self._weight("head", linear, lines))

    def _weight(self, name: str, inner: Line, lines: tuple[Line, ...]) -> Block:
        size = self.shape.vocabulary * self.shape.width * self.shape.weight
        return self.new(size, "empty_memory_format", inner, ("__init__", MODEL, BUILD[name]), *lines)

    def batch(self) -> list[Block]:
        lines = (("next_batch", HOME + "data.py", 44), *TRAIN)
        return [self.new(self.shape.tokens * 8, "_to_copy", *lines) for _ in range(2)]

    def layer(self, keep: bool = True) -> list[Block]:
        """Run one layer, and return what its backward pass needs; the last block is the layer's output."""
        saved: list[Block] = []
        before: Block | None = None
        for operator, size, lines in self._operators():
            block = self.new(size, operator, *lines, *CALL, ("forward", MODEL, 97), *CALL, *self.above)
            if not keep and before:
                self.device.free(before)
            before = block
            saved.append(block)
        return saved if keep else saved[-1:]

    def _operators(self) -> list[tuple[str, int, tuple[Line, ...]]]:
        s, hidden = self.shape, self.shape.hidden
        attention = (*CALL, ("forward", MODEL, 71))
        mlp = (*CALL, ("forward", MODEL, 73))
        table = s.batch * s.heads * s.sequence * s.sequence * s.compute
        linear: Line = ("forward", TORCH + "nn/modules/linear.py", 125)
        written = [
            ("baddbmm", table, (("forward", MODEL, 39), *attention)),
            ("_softmax", table, (("softmax", TORCH + "nn/functional.py", 2142), ("forward", MODEL, 40), *attention)),
            ("bmm", hidden, (("forward", MODEL, 41), *attention)),
        ]
        fused = [("_scaled_dot_product_flash_attention", hidden, (("forward", MODEL, 36), *attention))]
        return [
            ("_fused_rms_norm", hidden, (("rms_norm", TORCH + "nn/functional.py", 2950), ("forward", MODEL, 71))),
            ("mm", 3 * hidden, (linear, *CALL, ("forward", MODEL, 34), *attention)),
            *(written if self.scores else fused),
            ("mm", hidden, (linear, *CALL, ("forward", MODEL, 43), *attention)),
            ("add_Tensor", hidden, (("forward", MODEL, 72),)),
            ("mm", 4 * hidden, (linear, *CALL, ("forward", MODEL, 56), *mlp)),
            ("gelu", 4 * hidden, (("gelu", TORCH + "nn/functional.py", 1802), ("forward", MODEL, 57), *mlp)),
            ("mm", hidden, (linear, *CALL, ("forward", MODEL, 58), *mlp)),
            ("add_Tensor", hidden, (("forward", MODEL, 74),)),
        ]

    def forward(self, keep: bool = True) -> list[list[Block]]:
        """Run all layers and the output layer; return the saved blocks of each. `keep` False: under no_grad."""
        saved: list[list[Block]] = []
        for _ in range(self.shape.layers):
            saved.append(self.layer(keep))
            if not keep and len(saved) > 1:
                self.free_all(saved.pop(0))
        saved.append([self.logits()])
        return saved

    @property
    def logit_bytes(self) -> int:
        return self.shape.tokens * self.shape.vocabulary * self.shape.compute

    def logits(self) -> Block:
        linear: Line = ("forward", TORCH + "nn/modules/linear.py", 125)
        return self.new(self.logit_bytes, "mm", linear, *CALL, ("forward", MODEL, 99), *CALL, *self.above)

    def loss(self) -> list[Block]:
        """Compute the cross-entropy; return its float32 copy of the logits, the log-probabilities and the loss."""
        caller = self.above[0]
        at = (caller[0], caller[1], caller[2] + 2)
        wide = self.shape.tokens * self.shape.vocabulary * 4
        inner: tuple[Line, ...] = (("cross_entropy", TORCH + "nn/functional.py", 3494), at, *self.above[1:])
        kept = [self.new(wide, "_to_copy", at, *self.above[1:])] if self.float_logits else []
        kept.append(self.new(wide if self.float_logits else self.logit_bytes, "_log_softmax", *inner))
        return [*kept, self.new(4, "nll_loss_forward", *inner)]

    def backward(self, saved: list[list[Block]], loss: list[Block], keep_loss: bool = True) -> None:
        """Run the backward pass, which frees what was saved and allocates gradients in the first pass."""
        first = not self.gradients
        wide = loss[0].requested
        grads = [self.device.alloc(wide, self.recorder.backward("_log_softmax_backward_data", "LogSoftmaxBackward0"))]
        self.free_all(loss[:-1] if keep_loss else loss)
        flowing = self.device.alloc(self.shape.hidden, self.recorder.backward("mm", "MmBackward0"))
        self.free_all(grads + saved[-1])
        if first:
            self._gradient(self.weights[-1])
        for number, layer in reversed(list(enumerate(saved[:-1]))):
            flowing = self._layer_backward(layer, flowing, number if first else None)
        self.device.free(flowing)
        if first:
            self._gradient(self.weights[0])

    def _layer_backward(self, layer: list[Block], flowing: Block, number: int | None) -> Block:
        for block in reversed(layer):
            made = self.device.alloc(block.requested, self.recorder.backward("mm", "MmBackward0"))
            self.device.free(flowing)
            self.device.free(block)
            flowing = made
        if number is not None:
            for weight in reversed(self.weights[1 + 4 * number : 5 + 4 * number]):
                self._gradient(weight)
        return flowing

    def _gradient(self, weight: Block) -> None:
        self.gradients.append(self.device.alloc(weight.requested, self.recorder.gradient()))

    def optimizer(self, state_bytes: float = 1.0, copies: int = 1, foreach: bool = True) -> None:
        """Run AdamW's step: two tensors of state for each weight at the first, and copies for a step with foreach."""
        step: tuple[Line, ...] = (
            ("step", TORCH + "optim/adamw.py", 220),
            ("wrapper", TORCH + "optim/optimizer.py", 487),
            ("train_step", HOME + "train.py", 79),
            *TRAIN,
        )
        self._annotate("START")
        if not self.state:
            group = (("_init_group", TORCH + "optim/adamw.py", 178), *step)
            for weight in self.weights:
                size = int(weight.requested * state_bytes)
                self.state += [self.new(size, "zeros_like", *group) for _ in range(2)]
        multi = (
            ("_multi_tensor_adamw", TORCH + "optim/adamw.py", 610),
            ("adamw", TORCH + "optim/adamw.py", 812),
            *step,
        )
        if foreach:
            made = [
                self.new(int(w.requested * state_bytes), "_foreach_sqrt", *multi)
                for _ in range(copies)
                for w in self.weights
            ]
            self.free_all(made)
        self._annotate("END")

    def _annotate(self, stage: str) -> None:
        self.annotations.append(
            {"stage": stage, "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": self.device.clock}
        )

    def zero_grad(self) -> None:
        self.free_all(self.gradients)
        self.gradients = []

    def step(self, after_forward: Callable[[], None] = lambda: None, **optimizer: Any) -> None:
        """Train one step."""
        batch = self.batch()
        saved = self.forward()
        after_forward()
        loss = self.loss()
        self.backward(saved, loss)
        self.optimizer(**optimizer)
        self.zero_grad()
        self.free_all([*batch, loss[-1]])

    def free_all(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            self.device.free(block)
