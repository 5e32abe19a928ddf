"""Compare the cells of the segment map with counting byte by byte."""

import numpy as np
import pandas as pd

from analyzers.memory.simulator import block_map, content_at


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
    drawn = block_map(segments, blocks, 50).iloc[0]
    for cell, (part, name, row) in enumerate(zip(cells, drawn["owners"], drawn["filled"], strict=True)):
        held = {n: int((part == n).sum()) for n in set(names)}
        assert held.get(name, 0) == max(held.values())
        first = 4096 + cell * len(part)
        inside = np.minimum(address + sizes, first + len(part)) - np.maximum(address, first)
        assert (row < 0) == (name == "")
        assert row < 0 or (names[row] == name and inside[row] == inside[names == name].max())


def test_segments_come_largest_first_and_may_be_empty():
    segments = pd.DataFrame({"address": [0, 1000], "bytes": [100, 400]})
    blocks = pd.DataFrame({"segment": [0], "address": [50], "requested": [50], "category": ["inputs"]})
    found = block_map(segments, blocks, cells=4)
    assert found["bytes"].tolist() == [400, 100]
    assert found["used"].tolist() == [0, 50]
    assert found["owners"].tolist() == [["", "", "", ""], ["", "", "inputs", "inputs"]]
    assert found["count"].tolist() == [0, 1]


def test_an_address_leads_to_its_block_or_to_the_gap_and_to_both_neighbours():
    """There are blocks of 1000 and 512 bytes with a gap behind the first; blocks take whole units of 512 bytes."""
    segments = pd.DataFrame({"address": [4096, 16384], "bytes": [4096, 1024]})
    blocks = pd.DataFrame({"segment": 4096, "address": [4096, 6144], "requested": [1000, 512]})
    for address in (4096, 5000, 5119):
        assert content_at(segments, blocks, address) == (0, 4096, 1000, 4096, -1, 1)
    for address in (5120, 6143):
        assert content_at(segments, blocks, address) == (-1, 5120, 1024, 4096, 0, 1)
    assert content_at(segments, blocks, 6144) == (1, 6144, 512, 4096, 0, -1)
    assert content_at(segments, blocks, 8191) == (-1, 6656, 1536, 4096, 1, -1)
    assert content_at(segments, blocks, 16384) == (-1, 16384, 1024, 16384, -1, -1)
    assert [content_at(segments, blocks, address) for address in (0, 4095, 8192, 1 << 63)] == [None] * 4
