"""Jobs whose ranks run the same lines of a model under other lines: another schedule, loop or wrapper."""

import torch
from torch import Tensor, nn

from benchmarks.advice.one_rank.jobs import STEPS, Decoder, Enter, Hand, adamw, backward, evaluate, load, loss_of, train


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
