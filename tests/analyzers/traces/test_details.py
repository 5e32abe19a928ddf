"""Queues, copies by size, operators by shape, and the kernels of each, compared with plain loops."""

import random
from collections import defaultdict

import pytest

SIZES = [[64, 64], [4096, 64], [1]]


def day(maker, seed, kernels=120):
    """Return a trace of operators that launch kernels, and of copies of all sizes, with its events for the loops."""
    dice, made, noted = random.Random(seed), maker.Tracing(), []
    at = 0
    for _ in range(kernels):
        name, size = dice.choice(["aten::mm", "aten::add"]), dice.choice(SIZES)
        kernel, stream = dice.choice(["gemm", "fill", "copy"]), dice.choice([7, 20])
        length, delay = dice.randrange(1, 40_000), dice.randrange(3, 90_000)
        outer = {"Input Dims": [size, size], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
        made.event("aten::linear", "cpu_op", at, 2_000, **outer)
        made.event(name, "cpu_op", at + 100, 1_800, **outer)
        moved = {"cat": "gpu_memcpy", "bytes": dice.randrange(1, 1 << 24)} if kernel == "copy" else {}
        made.kernel(kernel, at + 500 + delay, length, (at + 500, 200), stream=stream, **moved)
        noted.append((name, tuple(size), kernel, stream, at + 500, at + 500 + delay, length, moved.get("bytes", 0)))
        at += dice.randrange(2_500, 20_000)
    return made, noted


@pytest.mark.parametrize("seed", range(3))
def test_shapes_and_launched_kernels_add_up(maker, seed):
    made, noted = day(maker, seed)
    [account] = maker.accounts(made.text())
    by_shape, by_pair = defaultdict(lambda: [0, 0]), defaultdict(lambda: [0, 0])
    for name, size, kernel, _, _, _, length, _ in noted:
        for found, key in ((by_shape, (name, size)), (by_pair, (name, kernel))):
            found[key][0] += 1
            found[key][1] += length
    told = {(one.name, one.shapes): [one.count, one.total_ns] for one in account.shapes}
    assert told == {(n, f"{list(s)} float, {list(s)} float"): counts for (n, s), counts in by_shape.items()}
    assert {(one.operator, one.kernel): [one.count, one.total_ns] for one in account.launched} == by_pair
    square = next(
        one for one in account.shapes if (one.name, one.shapes) == ("aten::mm", "[64, 64] float, [64, 64] float")
    )
    assert square.flops == 2 * 64**3 * square.count
    assert square.flops_per_s == round(square.flops / square.total_ns * 1e9)


@pytest.mark.parametrize("seed", range(3))
def test_queues_are_counted_moment_by_moment(maker, seed, monkeypatch):
    monkeypatch.setattr("analyzers.traces.launches.FULL", 2)
    made, noted = day(maker, seed)
    [account] = maker.accounts(made.text())
    for queue in account.queues:
        mine = [(call, start) for _, _, _, stream, call, start, _, _ in noted if f"stream {stream}" == queue.name]
        edges = sorted({at for pair in mine for at in pair})
        lengths = [sum(call <= at < start for call, start in mine) for at in edges]
        stretches = [(b - a, length) for a, b, length in zip(edges, edges[1:], lengths, strict=False)]
        assert (queue.count, queue.max) == (len(mine), max(lengths))
        assert queue.mean == pytest.approx(sum(ns * n for ns, n in stretches) / (edges[-1] - edges[0]), abs=1e-3)
        assert queue.full_ns == sum(ns for ns, length in stretches if length > 2)


def test_copies_are_told_apart_by_size(maker):
    made, noted = day(maker, 1)
    [account] = maker.accounts(made.text())
    sizes = [(size, length) for _, _, _, _, _, _, length, size in noted if size]
    assert sum(one.count for one in account.copy_sizes) == len(sizes)
    for one in account.copy_sizes:
        mine = [(size, ns) for size, ns in sizes if one.at_least <= size < 16 * one.at_least]
        assert (one.count, one.bytes, one.total_ns) == (len(mine), *map(sum, zip(*mine, strict=True)))
        assert one.bytes_per_s == round(one.bytes / one.total_ns * 1e9)
