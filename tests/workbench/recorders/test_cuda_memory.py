"""Categories added to PyTorch's own history equal those that the CPU recorder finds itself."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from workbench.recorders import RecorderOptions, Recorders
from workbench.recorders.memory.cpu_history import LiveBlocks, trace_entries
from workbench.recorders.memory.cuda_history import categorize
from workbench.recorders.memory.tensor_hooks import PARAMETERS, Note

WIDTH = 32


def keep_products(_: object, operation: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    kept = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


class Selective(nn.Module):
    """Two layers whose checkpointing keeps only matrix products, which no saved-tensor hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            run = partial(checkpoint, use_reentrant=False)
            contexts = partial(create_selective_checkpoint_contexts, keep_products)
            x = run(lambda h, layer=layer: layer(h).sigmoid().square(), x, context_fn=contexts)
        return x


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], list[Note]]:
    """Fixture: the trace entries of a step, with categories, and the notes of the hooks."""
    kept: list = []
    with pytest.MonkeyPatch.context() as patch:
        add = LiveBlocks.add_session
        patch.setattr(
            LiveBlocks, "add_session", lambda self, *given: (add(self, *given), kept.append((self, given[1])))
        )
        train(tmp_path_factory.mktemp("run"))
    blocks, notes = kept[-1]
    return trace_entries(list(blocks.events())[-len(blocks._sessions[-1]) :]), notes


def train(folder: Path) -> None:
    model = Selective()
    optimizer = torch.optim.AdamW(model.parameters())
    options = RecorderOptions(str(folder), enable_memory_snapshot=True, profile_freq=3)
    recorders = Recorders(options, model=model, optimizer=optimizer)
    for step in range(1, 4):
        with recorders.step(step):
            with recorders.phase("data_wait"):
                batch = torch.randn(8, WIDTH)
            with recorders.phase("fwd"):
                loss = model(batch).square().mean()
            with recorders.phase("bwd"):
                loss.backward()
            with recorders.phase("optim"):
                optimizer.step()
                optimizer.zero_grad()
    recorders.close()


def test_the_same_categories_as_on_cpu(seen: tuple[list[dict], list[Note]]) -> None:
    entries, notes = seen
    bare = [{key: value for key, value in one.items() if key not in ("category", "user_metadata")} for one in entries]
    categorize(bare, notes)
    allocs = [(one, other) for one, other in zip(entries, bare, strict=True) if one["action"] == "alloc"]
    assert {one["category"] for one, _ in allocs} >= {"activations", "gradients", "inputs", "temporary"}
    assert [one["category"] for one, _ in allocs] == [other["category"] for _, other in allocs]


def test_what_selective_checkpointing_keeps_is_an_activation(seen: tuple[list[dict], list[Note]]) -> None:
    entries, notes = seen
    turns = [note.time_ns // 1000 for note in notes if note.kind == "phase" and note.label == "bwd"]
    born = {one["addr"]: one for one in entries if one["action"] == "alloc" and one["time_us"] < turns[-1]}
    for one in entries:
        if one["action"] == "free_completed" and one["time_us"] < turns[-1]:
            born.pop(one["addr"], None)
    large = [one["category"] for one in born.values() if one["size"] == 4 * 8 * WIDTH]
    assert len(large) >= 4
    assert set(large) <= {"activations", "inputs"}


def test_older_blocks_take_the_weightiest_note() -> None:
    trace = [{"action": "alloc", "addr": 7, "size": 4, "time_us": 5, "frames": []}]
    notes = [Note(2000, 9, PARAMETERS, "w"), Note(3000, 9, "activations", "0"), Note(9000, 7, "gradients", "w")]
    assert categorize(trace, notes) == {9: ["parameters", "w"]}
    assert (trace[0]["category"], trace[0]["user_metadata"]) == ("gradients", "w")


def test_a_block_and_its_note_in_one_microsecond() -> None:
    """Times of entries are cut to microseconds, and one address is used twice within three of them."""
    actions = [("alloc", 5), ("free_requested", 6), ("free_completed", 6), ("alloc", 7)]
    trace = [{"action": action, "addr": 7, "size": 4, "time_us": us, "frames": []} for action, us in actions]
    categorize(trace, [Note(6_700, 7, "gradients", "w"), Note(7_900, 7, "inputs", "0")])
    assert [one["category"] for one in trace if one["action"] == "alloc"] == ["gradients", "inputs"]
