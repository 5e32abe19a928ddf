"""All-to-alls with parts of different sizes: the bytes from each rank to each other rank."""

from types import SimpleNamespace

import numpy as np
import pytest

from analyzers import traces
from analyzers.traces.model import AllToAll
from analyzers.traces.views import traffic
from workbench.present.tables.trace import bytes_sent
from workbench.web.components.rank_charts import bytes_sent as drawn

RANKS = 3
PARTS = {0: [1, 2, 5], 1: [4, 0, 4], 2: [0, 3, 5]}


def exchange(made, splits, *, at, elements=800, name="all_to_allv", group="7"):
    noted = {
        "Collective name": name,
        "Process Group Name": group,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": RANKS,
        "dtype": "Float",
        "In split size": splits,
    }
    made.kernel("ncclDevKernel_SendRecv", at, 500, launch=(at - 50, 10), **noted)


@pytest.fixture
def report(maker):
    files = []
    for rank, parts in PARTS.items():
        made = maker.Tracing(rank=rank, world=RANKS)
        exchange(made, str(parts), at=1000)
        exchange(made, str(parts), at=2000)
        exchange(made, "[]", at=3000, elements=30)
        exchange(made, "[1, 2, ...]", at=4000)
        exchange(made, "[1, 2]", at=5000)
        exchange(made, "[0, 0, 0]", at=6000)
        exchange(made, str(parts), at=7000, name="allreduce")
        files.append(maker.save(made.text(), f"rank{rank}_trace.json"))
    return traces.analyze(files)


def test_each_part_goes_to_its_rank(report):
    for account in report.data.ranks:
        [found] = account.exchanges
        expected = [2 * 4 * 800 * part // 8 + 4 * 10 for part in PARTS[account.rank]]
        assert (found.group, found.ranks, found.count) == ("7", [0, 1, 2], 3)
        assert found.sent_bytes == expected


def test_the_table_has_a_row_a_rank_and_a_column_a_peer(report):
    shown = bytes_sent(report.data.ranks)
    assert [(row[0], row[2:]) for row in shown.rows] == [
        ("0", ("840 B", "1.6 KiB", "3.9 KiB")),
        ("1", ("3.2 KiB", "40 B", "3.2 KiB")),
        ("2", ("40 B", "2.4 KiB", "3.9 KiB")),
    ]


def account(rank, *groups):
    """Return the trace data of a rank that sent the given bytes to other ranks."""
    sent = [AllToAll(group="7", count=1, ranks=list(to), sent_bytes=list(to.values())) for to in groups]
    return SimpleNamespace(rank=rank, exchanges=sent)


def test_all_groups_make_one_matrix():
    found = traffic([account(2, {2: 5, 3: 6}), account(0, {0: 1, 1: 2}, {0: 10, 2: 20}), account(5), account(None, {})])
    assert (list(found.index), list(found.columns)) == (["0", "2"], ["0", "1", "2", "3"])
    np.testing.assert_equal(found.to_numpy(), [[11, 2, 20, np.nan], [np.nan, np.nan, 5, 6]])
    assert traffic([]).empty
    assert traffic([account(0, {})]).empty


def test_neighbours_share_a_row_that_tells_the_most_of_a_pair():
    """Of 600 ranks in groups of 4, each sends its own number of bytes to the others, one a thousand times as many."""
    groups = [range(at, at + 4) for at in range(0, 600, 4)]
    accounts = [account(rank, dict.fromkeys(mine, rank) | {402: 402_000}) for mine in groups for rank in mine]
    found = traffic(accounts, at_most=256)
    assert found.shape == (200, 200)
    assert (found.index[1], found.columns[199]) == ("3-5", "597-599")
    assert found.loc["3-5", "3-5"] == 5
    assert found.loc["0-2", "402-404"] == 402_000
    assert np.isnan(found.loc["3-5", "9-11"])


def test_members_that_nobody_names_are_no_ranks(maker):
    """The file does not say which ranks of a job of 6 are in a group of 3."""
    made = maker.Tracing(rank=4, world=6)
    exchange(made, "[1, 1, 2]", at=1000)
    report = traces.analyze([maker.save(made.text(), "rank4_trace.json")])
    [found] = report.data.ranks[0].exchanges
    assert (found.ranks, found.sent_bytes) == ([], [800, 800, 1600])
    assert bytes_sent(report.data.ranks).columns[2:] == ("to member 0", "to member 1", "to member 2")
    assert traffic(report.data.ranks).empty


def test_the_heat_map_tells_bytes_in_each_cell(report):
    [cells] = drawn(traffic(report.data.ranks)).data
    assert cells.z.tolist() == [[840, 1640, 4040], [3240, 40, 3240], [40, 2440, 4040]]
    assert (cells.text[0], cells.zmax) == (["840 B", "1.6 KiB", "3.9 KiB"], 4040)
