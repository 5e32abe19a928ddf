"""All-to-alls of uneven parts: who sends how much to whom."""

import pytest

from analyzers import traces
from workbench.present.traces import exchanges

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
    shown = exchanges(report.data.ranks)
    assert [(row[0], row[2:]) for row in shown.rows] == [
        ("0", ("840 B", "1.6 KiB", "3.9 KiB")),
        ("1", ("3.2 KiB", "40 B", "3.2 KiB")),
        ("2", ("40 B", "2.4 KiB", "3.9 KiB")),
    ]
