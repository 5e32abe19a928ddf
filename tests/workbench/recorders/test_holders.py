"""Name what keeps the tensors that each step leaves, as training scripts keep them."""

import functools
import json
import stat
import subprocess
import sys
import weakref
from collections import deque

import pytest
import torch
from torch import nn

from analyzers.holders import holder_of, read_holders
from workbench.recorders import MemoryRecorder
from workbench.recorders.memory.holders import HolderSearch

STEPS = 11
REPLAY = deque()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.maps = []

    def forward(self, x):
        hidden = self.layer(x)
        self.maps.append(hidden.relu())
        return hidden


class Log:
    __slots__ = ("buffer",)

    def __init__(self):
        self.buffer = []

    def add(self, name, value):
        self.buffer.append((name, value))


class Loader:
    def __init__(self):
        self.errors = []

    def batch(self):
        batch = torch.randn(8, 16)
        try:
            int("a damaged sample")
        except ValueError as error:
            self.errors.append(error)
        return batch


@functools.cache
def positions(x):
    return x.sin()


def losses(step):
    kept = []
    for _ in step():
        loss = torch.ones(16, requires_grad=True).exp().sum()
        kept.append(loss)


def outputs(step):
    kept = []
    for n in step():
        output = torch.ones(16)
        kept.append({"step": n, "output": output})


def cached(step):
    state = {"epoch": 0, "cache": {}}
    for n in step():
        state["cache"][n] = torch.ones(16)


def of_a_module(step):
    model = Block()
    for _ in step():
        model(torch.ones(2, 16))


def of_a_closure(step):
    def make():
        history = []

        def add():
            history.append(torch.ones(16))

        return add

    add = make()
    for _ in step():
        add()


def replayed(step):
    REPLAY.clear()
    for _ in step():
        REPLAY.extend((torch.ones(4), torch.ones(4)) for _ in range(3))


def by_a_hook(step):
    layer, seen = nn.Linear(4, 4), []
    layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    for _ in step():
        layer(torch.ones(4))


def with_errors(step):
    loader = Loader()
    for _ in step():
        loader.batch()


def in_a_cache(step):
    positions.cache_clear()
    for _ in step():
        positions(torch.ones(16))


def logged(step):
    log = Log()
    for n in step():
        log.add(f"step {n}", torch.ones(16))


def generators(step):
    def parts(whole):
        yield from whole.split(4)

    started = []
    for _ in step():
        part = parts(torch.ones(16))
        next(part)
        started.append(part)


def summed(step):
    total = torch.zeros(())
    for _ in step():
        total = total + torch.ones(16, requires_grad=True).exp().sum()


LEAKS = {
    losses: ("kept", "list", "losses"),
    outputs: ("kept", "list", "outputs"),
    cached: ("state['cache']", "dict", "cached"),
    of_a_module: ("Block.maps", "list", "Block"),
    of_a_closure: ("history", "list", "closure of of_a_closure.<locals>.make.<locals>.add"),
    replayed: ("REPLAY", "deque", __name__),
    by_a_hook: ("seen", "list", "by_a_hook"),
    with_errors: ("Loader.errors", "list", "Loader"),
    in_a_cache: ("positions", "lru_cache", "positions"),
    logged: ("Log.buffer", "list", "Log"),
    generators: ("started", "list", "generators"),
    summed: ("total", "graph", "summed"),
}


def adam(step):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in step():
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def moving_average(step):
    model = nn.Linear(4, 4)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in step():
        average = {name: 0.9 * average[name] + 0.1 * value for name, value in model.state_dict().items()}


def bounded(step):
    kept = deque(maxlen=3)
    for _ in step():
        kept.append(torch.ones(16))


def accumulated(step):
    model = nn.Linear(4, 4)
    for _ in step():
        parts = [model(torch.ones(4)).sum() / 4 for _ in range(4)]
        torch.stack(parts).sum().backward()
        model.zero_grad()


_PROGRAM = """
import importlib.util, sys
from pathlib import Path
name, file, folder, train = sys.argv[1:]
spec = importlib.util.spec_from_file_location(name, file)
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.search_in(Path(folder), getattr(module, train))
"""


def searched(folder, train):
    """Return what is found in a run of `train` in a process of its own, whose heap has nothing of other tests."""
    words = [__name__, __file__, str(folder), train.__name__]
    subprocess.run([sys.executable, "-c", _PROGRAM, *words], check=True)
    return read_holders(folder, 0)


def search_in(folder, train):
    """Search in a run of `train`, whose steps call `step`."""
    search = HolderSearch(folder)

    def step():
        for number in range(1, STEPS):
            yield number
            search.step_ended(number)

    train(step)


@pytest.mark.parametrize("train", LEAKS, ids=lambda train: train.__name__)
def test_what_keeps_tensors_is_named(tmp_path, train):
    [holder] = searched(tmp_path, train)
    assert (holder.name, holder.kind) == LEAKS[train][:2]
    assert holder.where.endswith(LEAKS[train][2])
    assert holder.file == __file__
    assert holder.line or train is replayed  # the module's own code is gone
    assert bool(holder.graph) is (train in (losses, of_a_module, by_a_hook, summed))
    if train in (losses, outputs, of_a_module, replayed, by_a_hook, with_errors, logged, generators):
        assert all(place.startswith("test_holders.py:") for place in holder.added_at)
        assert holder.added_at


@pytest.mark.parametrize("train", [adam, moving_average, bounded, accumulated], ids=lambda train: train.__name__)
def test_what_does_not_grow_is_not_named(tmp_path, train):
    assert searched(tmp_path, train) == []


def test_the_search_keeps_nothing_and_calls_nothing_of_the_script(tmp_path):
    """Each tensor dies with its last name, whatever the collector does; no property or operator is called."""

    class Touchy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_):
            raise AssertionError("an operator was called")

    class Proxy:
        @property
        def __class__(self):
            raise AssertionError("a property was called")

        def __getattr__(self, _):
            raise AssertionError("an attribute was looked up")

    search, kept, proxy = HolderSearch(tmp_path), [], Proxy()
    object.__setattr__(proxy, "content", kept)
    own = torch.Tensor._make_subclass(Touchy, torch.ones(4))
    names_before = locals()
    known = set(names_before)
    for number in range(1, STEPS):
        kept.append(torch.ones(4))
        search.step_ended(number)
    assert set(names_before) == known  # the dict of `locals()` is the script's
    assert (tmp_path / "rank0_holders.json").exists()
    references = [weakref.ref(tensor) for tensor in [*kept, own]]
    kept.clear()
    del own
    names_before.clear()
    assert [reference() for reference in references] == [None] * STEPS


def test_the_recorder_writes_it_beside_the_snapshots_on_request(tmp_path):
    for asked in (False, True):
        folder = tmp_path / str(asked)
        memory, kept = MemoryRecorder(folder, nn.Linear(2, 2), freq=100, window=1, find_holders=asked), []
        for number in range(1, STEPS):
            with memory.step(number):
                kept.append(torch.ones(1024))
        memory.close()
    assert not (tmp_path / "False").exists()
    path = tmp_path / "True" / "rank0_holders.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [holder] = read_holders(path.parent, 0)
    assert holder.bytes_per_step == 4096
    assert holder_of([holder], 8192) is holder
    assert holder_of([holder], 1 << 20) is None  # it is not what grows so much


def test_a_failing_search_costs_the_job_nothing(tmp_path, capsys):
    search = HolderSearch(tmp_path / "file")
    (tmp_path / "file").write_text("")
    for number in range(1, STEPS):
        search.step_ended(number)
    assert capsys.readouterr().err.count("not recorded, and the job continues") <= 1


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"examinations": [], "holders": []}', b'{"examinations": [{"step": 1e400}], "holders": [1]}'],
)
def test_a_damaged_file_is_none(tmp_path, content):
    (tmp_path / "rank0_holders.json").write_bytes(content)
    assert read_holders(tmp_path, 0) is None


def test_texts_of_the_file_are_bounded(tmp_path):
    holder = {"name": "x" * 10_000, "scope": "local", "kind": "list", "where": "f", "length": 9, "first_length": 1}
    holder |= {"first_step": 1, "step": 9, "tensor_bytes": 4}
    content = {"examinations": [{"step": 9}], "holders": [holder] * 100}
    (tmp_path / "rank0_holders.json").write_text(json.dumps(content))
    assert len(read_holders(tmp_path, 0)) <= 20
    assert sys.getsizeof(read_holders(tmp_path, None)) < 1000
