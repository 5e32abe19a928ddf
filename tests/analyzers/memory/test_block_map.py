"""Cells of a segment against counting byte by byte."""

import numpy as np
import pandas as pd

from analyzers.memory.block_map import block_map


def test_cells_show_who_has_the_most_bytes_in_them():
    rng = np.random.default_rng(3)
    sizes, gaps = rng.integers(1, 40, 60), rng.integers(0, 20, 60)
    address = 4096 + (np.cumsum(sizes + gaps) - sizes)
    names = rng.choice(["parameters", "activations", "inputs"], 60)
    blocks = pd.DataFrame({"segment": 4096, "address": address, "requested": sizes, "category": names})
    total = int(address[-1] + sizes[-1]) - 4096
    of_byte = np.full(total, "", object)
    for start, length, name in zip(address - 4096, sizes, names, strict=True):
        of_byte[start : start + length] = name
    cells = np.split(of_byte[: total // 50 * 50], 50)
    segments = pd.DataFrame({"address": [4096], "bytes": [total // 50 * 50]})
    [drawn] = block_map(segments, blocks, 50)["owners"]
    for part, name in zip(cells, drawn, strict=True):
        held = {n: int((part == n).sum()) for n in set(names)}
        assert held.get(name, 0) == max(held.values())


def test_segments_come_largest_first_and_may_be_empty():
    segments = pd.DataFrame({"address": [0, 1000], "bytes": [100, 400]})
    blocks = pd.DataFrame({"segment": [0], "address": [50], "requested": [50], "category": ["inputs"]})
    found = block_map(segments, blocks, cells=4)
    assert found["bytes"].tolist() == [400, 100]
    assert found["used"].tolist() == [0, 50]
    assert found["owners"].tolist() == [["", "", "", ""], ["", "", "inputs", "inputs"]]
