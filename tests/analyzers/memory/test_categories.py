"""The rules that tell what a block is where nobody noted it."""

import pytest

from analyzers.memory import views

KIB = 1 << 10


def frames(maker, *places):
    return [maker.frame(name, file) for name, file in places]


@pytest.fixture
def step(maker):
    """A step of an FSDP job, sizes telling the blocks apart; the recorder noted nothing."""
    made = maker.Recording()
    root = ("train_step", "/job/train.py")
    engine = ("autograd::engine::evaluate_function: MmBackward0", "")
    unshard = frames(maker, ("alloc_all_gather_outputs", "torch/distributed/fsdp/_fsdp_param.py"),
                     ("foreach_all_gather_copy_out", "torch/distributed/fsdp/_fsdp_collectives.py"), root)  # fmt: skip
    reduce = frames(maker, ("foreach_reduce", "torch/distributed/fsdp/_fsdp_collectives.py"), engine, root)
    made.alloc(1 * KIB, unshard)
    saved = made.alloc(
        2 * KIB, frames(maker, ("cross_entropy", "torch/nn/functional.py"), ("mean_loss", "/job/train.py"))
    )
    scratch = made.alloc(3 * KIB, frames(maker, ("aten::mm", ""), ("fwd", "")))
    made.free(scratch, frames(maker, ("fwd", "")))
    inner = made.alloc(4 * KIB, frames(maker, ("aten::mm", ""), engine))
    made.free(inner, frames(maker, engine))
    made.free(saved, frames(maker, engine))
    made.alloc(5 * KIB, reduce)
    gathered = made.alloc(6 * KIB, reduce)
    made.free(gathered, frames(maker, engine))
    made.alloc(7 * KIB, frames(maker, ("torch::autograd::AccumulateGrad::apply", "??")))
    made.note("Optimizer.step#AdamW.step", "START")
    made.alloc(8 * KIB, frames(maker, ("_init_group", "torch/optim/adamw.py")))
    made.note("Optimizer.step#AdamW.step", "END")
    made.alloc(9 * KIB, frames(maker, ("strange", "/job/other.py")))
    return maker.save(made.snapshot())


def test_each_block_gets_the_category_that_its_stack_and_fate_tell(step):
    last = len(views.timeline(step, buckets=1000))
    found = {}
    for entry in range(last):
        table = views.state(step, entry)
        found |= dict(zip(table["requested"] // KIB, table["category"], strict=True))
    assert found == {
        1: "parameters",
        2: "activations",
        3: "temporary",
        4: "temporary",
        5: "gradients",
        6: "communication",
        7: "gradients",
        8: "optimizer_state",
        9: "unknown",
    }
