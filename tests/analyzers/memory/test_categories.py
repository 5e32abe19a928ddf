"""Test the rules that guess the category of a block that no recorder has categorised."""

import pytest

from analyzers import memory
from analyzers.memory import views

KIB = 1 << 10


def frames(maker, *places):
    return [maker.frame(name, file) for name, file in places]


@pytest.fixture
def step(maker):
    """Return the recording of a step of an FSDP job without categories; each block is identified by its size."""
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
        table = views.live_blocks(step, entry)
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


def test_without_any_phase_nothing_is_called_brief(maker):
    """If no frame shows a phase of training, a short life proves nothing."""
    [device] = memory.analyze([maker.save(maker.wander(3).snapshot())]).data.devices
    assert device.categories["unknown"] == device.peak_allocated_bytes
    assert [(basis.rule, basis.bytes) for basis in device.categories_bases] == [("none", device.peak_allocated_bytes)]


def test_older_blocks_are_told_by_the_sizes_of_the_gradients(maker):
    """Gradients have three sizes; three older blocks of each size are a parameter and Adam's two moments."""
    made, sizes = maker.Recording(), [KIB, 2 * KIB, 3 * KIB]
    for _ in range(3):
        for size in sizes:
            made.older(size)
    made.older(5 * KIB)
    engine = frames(maker, ("torch::autograd::AccumulateGrad::apply", "??"))
    for _ in range(2):
        gradients = [made.alloc(size, engine) for size in sizes]
        for gradient in gradients:
            made.free(gradient, frames(maker, ("zero_grad", "torch/optim/optimizer.py")))
    [device] = memory.analyze([maker.save(made.snapshot())]).data.devices
    found = {name: held // KIB for name, held in device.categories.items() if held}
    assert found == {"parameters": 6 + 5, "optimizer_state": 12, "gradients": 6}  # the 5 are frozen weights
    assert sum(basis.bytes for basis in device.categories_bases) == device.peak_allocated_bytes


def test_a_pass_without_frames_is_the_backward_pass(maker):
    """stacks="python" on CUDA records no frames of the autograd engine's threads."""
    made = maker.Recording()
    forward, update = (frames(maker, (name, "/job/model.py")) for name in ("forward", "step"))
    saved = made.alloc(4 * KIB, forward)
    made.free(made.alloc(2 * KIB, forward))
    made.free(made.alloc(KIB))
    made.alloc(3 * KIB)
    made.free(saved)
    made.alloc(8 * KIB, frames(maker, ("step", "/job/optim.py")) + update)
    artefact = maker.save(made.snapshot())
    assert held_after(artefact, 1) == {4: "activations", 2: "temporary"}
    assert held_after(artefact, len(made.entries) - 1) == {3: "gradients", 8: "optimizer_state"}


def test_parts_of_a_model_and_of_an_optimizer_that_constructors_make(maker):
    """They are no inputs, although they are made before the forward pass, used by it and freed later."""
    made = maker.Recording()
    weight = made.alloc(4 * KIB, frames(maker, ("__init__", "/job/modules/linear.py"), ("main", "/job/train.py")))
    moment = made.alloc(2 * KIB, frames(maker, ("__init__", "/job/optimizer.py"), ("main", "/job/train.py")))
    batch = made.alloc(KIB, frames(maker, ("main", "/job/train.py")))
    passed = made.alloc(3 * KIB, frames(maker, ("forward", "/job/model.py")))
    update = frames(maker, ("step", "/job/optimizer.py"))
    for address in (passed, batch, weight, moment):
        made.free(address, update if address in (weight, moment) else [])
    assert held_after(maker.save(made.snapshot()), 2) == {4: "parameters", 2: "optimizer_state", 1: "inputs"}


def hand_written_optimizer(maker, *, state_in_constructor):
    """Record three steps of an optimizer that writes `m = b * m + g`, `v = ...` and `p.data = p - lr * m`."""
    made = maker.Recording(segment_bytes=8192 * KIB)
    build = frames(maker, ("__init__", "/job/modules/linear.py"), ("main", "/job/train.py"))
    setup = frames(maker, ("__init__", "/job/optimizer.py"), ("main", "/job/train.py"))
    engine = frames(maker, ("torch::autograd::AccumulateGrad::apply", "??"))
    update = frames(maker, ("step", "/job/optimizer.py"))
    sizes = [1024 * KIB, 1024 * KIB, 512 * KIB]
    tensors = {"m": [], "v": [], "p": [made.alloc(size, build) for size in sizes]}
    if state_in_constructor:
        tensors |= {name: [made.alloc(size, setup) for size in sizes] for name in "mv"}
    for _ in range(3):
        saved = made.alloc(KIB, frames(maker, ("forward", "/job/model.py")))
        gradients = [made.alloc(size, engine) for size in sizes]
        made.free(saved)
        for number, size in enumerate(sizes):
            for name in "mvp":
                held, new = tensors[name], made.alloc(size, update)
                if number < len(held):
                    made.free(held[number], update)
                    held[number] = new
                else:
                    held.append(new)
        for gradient in gradients:
            made.free(gradient, frames(maker, ("zero_grad", "/job/optimizer.py")))
    return maker.save(made.snapshot())


@pytest.mark.parametrize("state_in_constructor", [True, False])
def test_parameters_that_the_optimizer_replaces_stay_parameters(maker, state_in_constructor):
    artefact = hand_written_optimizer(maker, state_in_constructor=state_in_constructor)
    table = views.live_blocks(artefact, len(views.timeline(artefact, buckets=1000)) - 1)
    held = table.groupby("category")["requested"].sum() // KIB
    assert held.to_dict() == {"parameters": 2560, "optimizer_state": 5120}


@pytest.mark.parametrize("state_in_constructor", [True, False])
def test_state_that_a_constructor_makes_is_not_late(maker, state_in_constructor):
    report = memory.analyze([hand_written_optimizer(maker, state_in_constructor=state_in_constructor)])
    late = [finding.title for finding in report.findings if finding.id == "memory.late_state"]
    assert late == ([] if state_in_constructor else ["The first optimizer step allocated 5.0 MiB of optimizer state"])


def held_after(artefact, entry):
    table = views.live_blocks(artefact, entry)
    return dict(zip(table["requested"] // KIB, table["category"], strict=True))


def test_operations_show_a_pass_that_no_python_frame_does(maker):
    """C++ stacks are an example; an operation of the same name inside the backward pass is no forward pass."""
    made = maker.Recording()
    forward = frames(maker, ("at::_ops::linear::call(at::Tensor const&)", "??"))
    engine = frames(maker, ("at::_ops::linear::call(at::Tensor const&)", "??"), ("torch::autograd::Engine::run", "??"))
    saved = made.alloc(4 * KIB, forward)
    made.free(made.alloc(2 * KIB, forward))
    made.free(made.alloc(KIB, engine))
    made.free(saved)
    made.alloc(3 * KIB, forward)
    artefact = maker.save(made.snapshot())
    assert held_after(artefact, 1) == {4: "activations", 2: "temporary"}
    assert held_after(artefact, 4)[1] == "temporary"


def test_a_stack_of_cpp_frames_is_told_by_its_operation(maker):
    """The innermost frames, which are the same in all stacks, are those that recorded the stack."""
    made = maker.Recording()
    taking = [("torch::unwind::unwind()", "??"), ("c10::cuda::CUDACachingAllocator::malloc()", "??")]
    made.alloc(KIB, frames(maker, *taking, ("at::native::bmm_out()", "??"), ("at::_ops::bmm::call()", "??")))
    artefact = maker.save(made.snapshot())
    assert views.live_blocks(artefact, 0)["frame"].tolist() == ["bmm"]
    assert views.top_stacks(artefact)["frames"].iloc[0] == [
        "bmm",
        "??:1 at::native::bmm_out()",
        "??:1 at::_ops::bmm::call()",
    ]
    assert views.tree(artefact, by="stack")["name"].tolist() == ["bmm"]
    assert views.tree(artefact, by="line")["name"].tolist() == ["bmm"]
    whole = ["at::_ops::bmm::call():1", "at::native::bmm_out():1"]
    assert views.tree(artefact, by="whole_stack")["name"].tolist()[:2] == whole


def test_rows_of_the_largest_stacks_have_different_names(maker):
    """Rows of one line differ by their callers, rows of one operator by what it calls; older blocks have no line."""
    made = maker.Recording()
    made.older(3 * KIB)
    linear = ("forward", "/job/linear.py")
    made.alloc(9 * KIB, frames(maker, linear, ("attention", "/job/block.py")))
    made.alloc(8 * KIB, frames(maker, linear, ("mlp", "/job/block.py")))
    for operator, size in (("neg", 7 * KIB), ("mul", 6 * KIB)):
        native = (f"at::_ops::{operator}::call()", "??"), ("torch::autograd::generated::DivBackward0::apply()", "??")
        made.alloc(size, frames(maker, *native))
    assert views.top_stacks(maker.save(made.snapshot()))["name"].tolist() == [
        "/job/linear.py:1 forward, from job/block.py:1 attention",
        "/job/linear.py:1 forward, from job/block.py:1 mlp",
        "backward of div, in neg",
        "backward of div, in mul",
        "allocated before the recording began",
    ]


def test_a_backward_operation_is_named_with_the_saved_tensor_that_it_frees(maker):
    """Autograd frees what the forward pass saved as soon as the operation has run; much later is another operation."""
    made = maker.Recording()
    softmax, norm = (frames(maker, (name, f"/job/{name}.py")) for name in ("softmax", "norm"))
    exp, mul = made.alloc(4 * KIB, softmax), made.alloc(3 * KIB, norm)

    def backward(operator, size):
        return made.alloc(size, frames(maker, (f"torch::autograd::generated::{operator}Backward0::apply()", "??")))

    gradient = backward("Exp", 9 * KIB)
    made.free(exp)
    backward("Mul", 8 * KIB)
    for _ in range(4):
        made.free(backward("Sum", KIB))
    made.free(mul)
    names = views.top_stacks(maker.save(made.snapshot()))["name"].tolist()
    assert names[:2] == [
        "backward of exp, after which the result of job/softmax.py:1 softmax is freed",
        "backward of mul",
    ]
    made.free(gradient)


SOFTMAX = ("softmax", "/job/ops.py")
FREED = "backward of exp, after which the result of job/ops.py:1 softmax is freed"


@pytest.mark.parametrize(
    ("callers", "label", "ending"),
    [
        ((("forward", "/job/attention.py"), ("forward", "/job/block.py")), "", ", in job/attention.py:1 forward"),
        ((("scores", "/job/ops.py"), ("forward", "/job/attention.py")), "", ", in job/attention.py:1 forward"),
        ((("forward", "/job/attention.py"),), "layers.3.attention", ", in layers.3.attention"),
        ((("main", "/job/train.py"),), "", ""),
        ((), "", ""),
        ((("main", "/job/train.py"),), "loss", ", in loss"),
    ],
    ids=["the module's forward()", "through a function", "recorded name", "no module", "no caller", "the loss"],
)
def test_a_backward_operation_is_named_with_the_module_of_the_saved_tensor(maker, callers, label, ending):
    made = maker.Recording()
    saved = made.alloc(
        4 * KIB,
        frames(maker, SOFTMAX, *callers),
        **({"user_metadata": label, "category": "activations"} if label else {}),
    )
    made.alloc(9 * KIB, frames(maker, ("torch::autograd::generated::ExpBackward0::apply()", "??")))
    made.free(saved)
    for _ in range(4):
        made.free(made.alloc(KIB, frames(maker, ("torch::autograd::generated::SumBackward0::apply()", "??"))))
    if label:
        made.ours = {"schema": "workbench.snapshot/1", "rank": 0, "step": 1, "exact": True, "made_up_segments": False}
    assert views.top_stacks(maker.save(made.snapshot()))["name"].iloc[0] == FREED + ending


def test_a_line_inside_the_modules_own_forward_has_no_second_module(maker):
    made = maker.Recording()
    saved = made.alloc(4 * KIB, frames(maker, ("forward", "/job/norm.py"), ("main", "/job/train.py")))
    made.alloc(9 * KIB, frames(maker, ("torch::autograd::generated::ExpBackward0::apply()", "??")))
    made.free(saved)
    for _ in range(4):
        made.free(made.alloc(KIB, []))
    name = views.top_stacks(maker.save(made.snapshot()))["name"].iloc[0]
    assert name == "backward of exp, after which the result of job/norm.py:1 forward is freed"


def test_workspace_of_cublas_is_known_by_its_size(maker):
    """Without native frames, it would be attributed to the line of the first matrix product."""
    made = maker.Recording()
    linear = frames(maker, ("forward", "/job/model.py"))
    made.alloc(8519680, linear)
    made.free(made.alloc(8519680, linear), linear)
    made.alloc(8519680 + 512, linear)
    live = views.live_blocks(maker.save(made.snapshot()), 0)
    assert live["category"].tolist() == ["workspace"]
