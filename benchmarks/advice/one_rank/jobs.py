"""Small training jobs that differ between their ranks; each function trains one rank of one job.

A job calls `step(number)` around each step and `phase(name)` in it, as the memory recorder wants it. Nothing is sent
between the ranks: what a rank needs depends on its own batch and its own part of the model.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, WORDS, STEPS, WORLD = 96, 2000, 5, 4
Enter = Callable[[str], AbstractContextManager[None]]
Hand = Callable[[nn.Module, torch.optim.Optimizer | None], None]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.inner = Attention(), inner or FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.inner(self.norm2(x))


class Decoder(nn.Module):
    """A stage of a decoder; the first stage has the embedding, the last one the head."""

    def __init__(self, layers: int = 3, *, first: bool = True, last: bool = True, recompute: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH) if first else None
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)) if last else (None, None)
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        if self.head is not None:
            x = self.head(self.norm(x))
        return x


class Experts(nn.Module):
    """The experts of this rank: they get the tokens that the routers of all ranks send here."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, 6 * WIDTH), nn.Linear(6 * WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(tokens)))


class MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, WORLD), Experts()
        self.share = 1.0

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weight = self.router(flat).softmax(-1).amax(-1, keepdim=True)
        received = self.dispatch(flat)
        return x + self.combine(self.experts(received), flat, weight).view_as(x)

    def dispatch(self, flat: Tensor) -> Tensor:
        rows = torch.arange(int(len(flat) * self.share)) % len(flat)
        return flat[rows]

    def combine(self, out: Tensor, flat: Tensor, weight: Tensor) -> Tensor:
        rows = torch.arange(len(out)) % len(flat)
        return torch.zeros_like(flat).index_add(0, rows, out) * weight


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1)
        )
        self.boxes = nn.Conv2d(32, 5, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.boxes(functional.relu(self.body(image)))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def load(batch: int, length: int) -> Tensor:
    return torch.randint(WORDS, (batch, length))


def train(
    step: Enter, phase: Enter, model: nn.Module, optimizer: torch.optim.Optimizer, shapes: list[tuple[int, int]],
    after: Callable[[int], object] = int,
) -> None:  # fmt: skip
    """Train a decoder for a step with each of these shapes of a batch."""
    for number, (batch, length) in enumerate(shapes, 1):
        with step(str(number)):
            with phase("data_wait"):
                tokens = load(batch, length)
            with phase("fwd"):
                loss = loss_of(model, tokens)
            with phase("bwd"):
                loss.backward()
            with phase("optim"):
                optimizer.step()
                optimizer.zero_grad()
            after(number)


def plain(step: Enter, phase: Enter, hand: Hand, shapes: list[tuple[int, int]], **model: bool) -> None:
    net = Decoder(**model)
    optimizer = adamw(net)
    hand(net, optimizer)
    train(step, phase, net, optimizer, shapes)


def uneven_batch(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """The last shard of the data set has three times the samples."""
    plain(step, phase, hand, [(12 if rank == 2 else 4, 64)] * STEPS)


def long_sample(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Samples are padded to the longest of the batch; in the last step rank 1 gets a very long one."""
    shapes = [(4, 48 + 8 * ((rank + n) % 3)) for n in range(STEPS)]
    if rank == 1:
        shapes[-1] = (4, 256)
    plain(step, phase, hand, shapes)


def long_sample_first_step(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """As `long_sample`, in the second step: nothing but the other ranks shows that it is long."""
    shapes = [(4, 200 if rank == 3 else 48 + 8 * ((rank + n) % 3)) for n in range(2)]
    plain(step, phase, hand, shapes)


def large_image(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """One image of a detection data set is not resized."""
    net = Detector()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    hand(net, optimizer)
    for number in range(1, STEPS + 1):
        with step(str(number)):
            with phase("data_wait"):
                side = 320 if rank == 3 and number == STEPS else 128
                images = torch.rand(4, 3, side, side)
            with phase("fwd"):
                loss = net(images).square().mean()
            with phase("bwd"):
                loss.backward()
            with phase("optim"):
                optimizer.step()
                optimizer.zero_grad()


def staged(rank: int, step: Enter, phase: Enter, hand: Hand, layers: int, in_flight: int) -> None:
    """Train one stage of a pipeline; `in_flight` microbatches wait for their backward pass."""
    net = Decoder(layers, first=rank == 0, last=rank == WORLD - 1)
    optimizer = adamw(net)
    hand(net, optimizer)
    for number in range(1, STEPS + 1):
        with step(str(number)):
            waiting: list[Tensor] = []
            for _ in range(4):
                with phase("fwd"):
                    out = net(load(2, 128) if rank == 0 else torch.randn(2, 128, WIDTH, requires_grad=True))
                    if rank == WORLD - 1:
                        out = functional.cross_entropy(out.flatten(0, 1), load(2, 128).flatten())
                    waiting.append(out)
                if len(waiting) >= in_flight:
                    backward(phase, waiting.pop(0))
            while waiting:
                backward(phase, waiting.pop(0))
            with phase("optim"):
                optimizer.step()
                optimizer.zero_grad()


def backward(phase: Enter, out: Tensor) -> None:
    with phase("bwd"):
        out.backward(torch.ones_like(out))


def last_stage_with_head(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Only the last stage has the output head and the logits."""
    staged(rank, step, phase, hand, layers=2, in_flight=1)


def first_stage_in_flight(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """1F1B: stage k holds the activations of as many microbatches as there are stages from it on."""
    staged(rank, step, phase, hand, layers=4 if rank < WORLD - 1 else 1, in_flight=WORLD - rank)


def uneven_stages(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """One stage has three times the layers."""
    staged(rank, step, phase, hand, layers=9 if rank == 1 else 3 if rank < WORLD - 1 else 1, in_flight=1)


def moving_average(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 keeps a moving average of the weights."""
    net = Decoder(layers=8)
    optimizer = adamw(net)
    hand(net, optimizer)
    ema: list[Tensor] = []

    def after(_: int) -> None:
        if rank == 0:
            update_ema(ema, net)

    train(step, phase, net, optimizer, [(1, 64)] * STEPS, after)


def update_ema(ema: list[Tensor], net: nn.Module) -> None:
    if not ema:
        ema.extend(p.detach().clone() for p in net.parameters())
    for mean, p in zip(ema, net.parameters(), strict=True):
        mean.lerp_(p.detach(), 0.01)


def full_checkpoint(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 gathers all shards of the state to save them after the last step."""
    net = Decoder(layers=4)
    optimizer = adamw(net)
    hand(net, optimizer)

    def after(number: int) -> None:
        if number == STEPS and rank == 0:
            save_checkpoint(gather_full_state_dict(net))

    train(step, phase, net, optimizer, [(1, 64)] * STEPS, after)


def gather_full_state_dict(net: nn.Module) -> dict[str, Tensor]:
    return {name: torch.cat([p.detach()] * 2 * WORLD) for name, p in net.named_parameters()}


def save_checkpoint(state: dict[str, Tensor]) -> int:
    return sum(value.nbytes for value in state.values())


def uneven_experts(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """The router sends most tokens to the experts of rank 3."""
    net = Decoder()
    for layer in net.layers:
        layer.inner = MoE()
        layer.inner.share = 2.5 if rank == 3 else 0.5
    optimizer = adamw(net)
    hand(net, optimizer)
    train(step, phase, net, optimizer, [(4, 96)] * STEPS)


def evaluation_on_rank_0(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 evaluates with a large batch, and keeps the graph."""
    net = Decoder()
    optimizer = adamw(net)
    hand(net, optimizer)

    def after(number: int) -> None:
        if number == STEPS and rank == 0:
            evaluate(net)

    train(step, phase, net, optimizer, [(4, 64)] * STEPS, after)


def evaluate(net: nn.Module) -> float:
    return float(loss_of(net, load(16, 64)))


def evaluation_everywhere(_: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """All ranks evaluate in the same way: the failure of one is chance."""
    net = Decoder()
    optimizer = adamw(net)
    hand(net, optimizer)
    train(step, phase, net, optimizer, [(4, 64)] * STEPS, lambda _: evaluate(net))


def alike(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """All ranks need about the same; lengths vary by a few per cent."""
    plain(step, phase, hand, [(8, 96 + 2 * ((rank + n) % 3)) for n in range(STEPS)])


def alike_varied(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Lengths vary from step to step on every rank, as they do where nothing is packed."""
    lengths = (64, 128, 96, 112, 80)
    plain(step, phase, hand, [(6, lengths[(rank + n) % 5]) for n in range(STEPS)])


def longer_from_now(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """A schedule doubles the sequence on all ranks in the last step."""
    plain(step, phase, hand, [(4, 64)] * (STEPS - 1) + [(4, 128 + 2 * (rank == 1))])


def small_logging(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 keeps a few small statistics; it fails by chance."""
    net = Decoder()
    optimizer = adamw(net)
    hand(net, optimizer)
    kept: list[Tensor] = []

    def after(_: int) -> None:
        if rank == 0:
            kept[:] = [torch.histc(p.detach(), 256) for p in net.parameters()]

    train(step, phase, net, optimizer, [(8, 96)] * STEPS, after)


def recorded_activations(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 keeps a copy of each module's output for a plot."""
    net = Decoder()
    optimizer = adamw(net)
    hand(net, optimizer)
    shown: dict[str, Tensor] = {}

    def remember_output(name: str, output: Tensor) -> None:
        shown[name] = output.detach().float().clone()

    if rank == 0:
        for name, module in net.named_modules():
            module.register_forward_hook(lambda _, __, output, name=name: remember_output(name, output))
    train(step, phase, net, optimizer, [(4, 96)] * STEPS)


def without_recomputation(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """A flag is missing in the environment of one node, so that its rank recomputes nothing."""
    plain(step, phase, hand, [(6, 128)] * STEPS, recompute=rank != 2)


def logged_losses(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 logs the logits and so keeps the graph of each step."""
    net = Decoder(layers=2)
    optimizer = adamw(net)
    hand(net, optimizer)
    history: list[Tensor] = []
    for number in range(1, 9):
        with step(str(number)):
            with phase("fwd"):
                logits = net(load(2, 64))
                loss = logits.logsumexp(-1).mean()
            if rank == 0:
                log_metrics(history, logits)
            with phase("bwd"):
                loss.backward(retain_graph=rank == 0)
            with phase("optim"):
                optimizer.step()
                optimizer.zero_grad()


def log_metrics(history: list[Tensor], logits: Tensor) -> None:
    history.append(logits.max(-1).values + logits.square().mean(-1))


def teacher_on_rank_0(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """A second, frozen model is built on rank 0 only."""
    net = Decoder(layers=3)
    optimizer = adamw(net)
    hand(net, optimizer)

    def after(number: int) -> None:
        if number == 3 and rank == 0:
            kept.append(build_teacher(net))

    kept: list[nn.Module] = []
    train(step, phase, net, optimizer, [(2, 64)] * STEPS, after)


def build_teacher(net: nn.Module) -> nn.Module:
    return nn.ModuleList(copy.deepcopy(net) for _ in range(4)).requires_grad_(requires_grad=False)


def train_in_order(step: Enter, phase: Enter, net: nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> None:
    """Train as `train` does, in a loop of its own."""
    for number in range(1, STEPS + 1):
        with step(str(number)):
            with phase("data_wait"):
                tokens = load(batch, 64)
            with phase("fwd"):
                loss = loss_of(net, tokens)
            with phase("bwd"):
                loss.backward()
            with phase("optim"):
                optimizer.step()
                optimizer.zero_grad()


def other_loop(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 1 trains in another function than the others, and needs as much as they do."""
    of_loops(step, phase, hand, batch=8, is_other=rank == 1)


def other_loop_and_batch(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 2 trains in another function than the others, with three times the batch."""
    of_loops(step, phase, hand, batch=12 if rank == 2 else 4, is_other=rank == 2)


def of_loops(step: Enter, phase: Enter, hand: Hand, *, batch: int, is_other: bool) -> None:
    net = Decoder()
    optimizer = adamw(net)
    hand(net, optimizer)
    if is_other:
        train_in_order(step, phase, net, optimizer, batch)
    else:
        train(step, phase, net, optimizer, [(batch, 64)] * STEPS)


class Monitored(nn.Module):
    """A wrapper that a user puts around a model on one rank."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.inner(tokens)
        return out


def wrapped_model(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 3 has its model in a wrapper, and needs as much as the others."""
    net = Decoder()
    optimizer = adamw(net)
    hand(net, optimizer)
    train(step, phase, Monitored(net) if rank == 3 else net, optimizer, [(8, 64)] * STEPS)


def warm_up_stage(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 runs three microbatches ahead in a function of its own, before it alternates as the others do."""
    net = Decoder(4, first=rank == 0, last=False)
    optimizer = adamw(net)
    hand(net, optimizer)
    for number in range(1, STEPS + 1):
        with step(str(number)):
            waiting = run_warmup(rank, phase, net) if rank == 0 else []
            for _ in range(4 - len(waiting)):
                with phase("fwd"):
                    waiting.append(net(microbatch(rank)))
                backward(phase, waiting.pop(0))
            while waiting:
                backward(phase, waiting.pop(0))
            with phase("optim"):
                optimizer.step()
                optimizer.zero_grad()


def run_warmup(rank: int, phase: Enter, net: nn.Module) -> list[Tensor]:
    waiting = []
    for _ in range(3):
        with phase("fwd"):
            waiting.append(net(microbatch(rank)))
    return waiting


def microbatch(rank: int) -> Tensor:
    return load(2, 128) if rank == 0 else torch.randn(2, 128, 96, requires_grad=True)


def other_loop_and_evaluation(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 trains in another function than the others, and evaluates with a large batch after it."""
    net = Decoder()
    optimizer = adamw(net)
    hand(net, optimizer)
    if rank == 0:
        train_in_order(step, phase, net, optimizer, 4)
        with step(str(STEPS + 1)):
            evaluate(net)
    else:
        train(step, phase, net, optimizer, [(4, 64)] * (STEPS + 1))


def samples_on_rank_0(rank: int, step: Enter, phase: Enter, hand: Hand) -> None:
    """Rank 0 runs its model on a large batch for a figure; no name says that this is no training."""
    net = Decoder()
    optimizer = adamw(net)
    hand(net, optimizer)

    def after(number: int) -> None:
        if number == STEPS and rank == 0:
            make_figure(net)

    train(step, phase, net, optimizer, [(4, 64)] * STEPS, after)


def make_figure(net: nn.Module) -> float:
    out: Tensor = net(load(16, 64))
    return float(out.amax(-1).mean())
