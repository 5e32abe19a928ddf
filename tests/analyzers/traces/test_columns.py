"""Unions of intervals, distinct values and nesting, beside plain loops."""

import numpy as np
import pytest

from analyzers.traces import columns
from analyzers.traces.accounts import break_down
from analyzers.traces.columns import innermost_selected, merge, spans, union_lengths
from analyzers.traces.launches import intersect, subtract, union
from analyzers.traces.reading.numbering import factorize_by_sorting, order_of_use

SPAN = 60


def random_intervals(dice, count=40):
    start = dice.integers(0, SPAN, count)
    return start, start + dice.integers(0, 8, count)


def instants(start, end):
    """Return the set of all ns that intervals cover."""
    return {ns for low, high in zip(start.tolist(), end.tolist(), strict=True) for ns in range(low, high)}


@pytest.mark.parametrize("seed", range(20))
def test_merged_intervals_cover_the_same_time(seed):
    dice = np.random.default_rng(seed)
    start, end = random_intervals(dice, 12)
    for rows in (np.arange(len(start)), np.argsort(start, kind="stable")):
        low, high = merge(start[rows], end[rows])
        assert instants(low, high) == instants(start, end)
        assert (low[1:] > high[:-1]).all()


@pytest.mark.parametrize("seed", range(20))
def test_combinations_of_intervals_are_those_of_sets(seed):
    dice = np.random.default_rng(seed)
    one, other = merge(*random_intervals(dice, 9)), merge(*random_intervals(dice, 9))
    for combine, of_sets in ((subtract, set.difference), (intersect, set.intersection), (union, set.union)):
        low, high = combine(one, other)
        assert instants(low, high) == of_sets(instants(*one), instants(*other))
        assert (low < high).all()
        assert (low[1:] > high[:-1]).all()


def test_combinations_with_no_intervals():
    one, none = (np.array([5]), np.array([9])), (np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert [column.tolist() for column in subtract(one, none)] == [[5], [9]]
    assert [column.tolist() for column in intersect(one, none)] == [[], []]
    assert [column.tolist() for column in subtract(none, one)] == [[], []]


@pytest.mark.parametrize("below", [columns.TIMES_BELOW, 0], ids=["at once", "one by one"])
@pytest.mark.parametrize("seed", range(5))
def test_groups_are_broken_down_as_each_by_itself(below, seed, monkeypatch):
    monkeypatch.setattr(columns, "TIMES_BELOW", below)
    dice = np.random.default_rng(seed)
    start, end = random_intervals(dice)
    group, kind = dice.integers(0, 6, len(start)), dice.integers(0, 2 + seed % 2, len(start))
    group[group == 3] = 4  # one group is empty
    for number, times in enumerate(break_down(start + 10**15, end + 10**15, kind, group, "abcdef")):
        mine = group == number
        of_kind = [instants(start[mine & (kind == k)], end[mine & (kind == k)]) for k in range(3)]
        span = end[mine].max() - start[mine].min() if mine.any() else 0
        assert (times.events, times.work_ns, times.span_ns) == (mine.sum(), (end - start)[mine].sum(), span)
        assert times.busy_ns == len(set.union(*of_kind)) == span - times.idle_ns
        assert [times.compute_ns, times.communication_ns, times.memory_ns] == [len(covered) for covered in of_kind]
        assert times.exposed_communication_ns == len(of_kind[1] - of_kind[0])
        assert times.overlapped_communication_ns == len(of_kind[1] & of_kind[0])
        assert times.exposed_memory_ns == len(of_kind[2] - of_kind[0] - of_kind[1])


def test_groups_without_intervals_have_no_length():
    nothing = np.zeros(0, np.int64)
    assert union_lengths(nothing, nothing, nothing, 2).tolist() == [0, 0]
    assert spans(nothing, nothing, nothing, 2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("type_", "low", "high"),
    [(np.int64, -(1 << 62), 1 << 62), (np.int32, -(1 << 31), (1 << 31) - 1), (np.uint64, 0, (1 << 64) - 1)],
)
def test_distant_values_are_numbered_as_by_a_sort(type_, low, high):
    column = np.random.default_rng(1).integers(low, high, 5000, dtype=type_)
    column[::3] = column[1]
    values, code = factorize_by_sorting(column, int(column.min()), int(column.max()))
    expected_values, expected = np.unique(column, return_inverse=True)
    assert (values == expected_values).all()
    assert (code == expected).all()


def test_the_innermost_selected_event_is_found_at_any_depth():
    dice = np.random.default_rng(2)
    parent = np.array([-1, *[dice.integers(max(-1, i - 3), i) for i in range(1, 400)]], np.int32)
    selected = dice.random(400) < 0.05
    found = innermost_selected(selected, parent)
    for row, ours in enumerate(found.tolist()):
        above = row
        while above != -1 and not selected[above]:
            above = parent[above]
        assert ours == above


def test_texts_are_numbered_in_the_order_of_their_use():
    kept, place = order_of_use([np.array([2, 0, 2]), np.array([3, 0])], 5)
    assert kept == [2, 0, 3]
    assert place.tolist() == [1, -1, 0, 2, -1]


def test_one_group_has_the_same_lengths_as_among_others():
    rng = np.random.default_rng(3)
    for size in (1, 2, 50):
        start = rng.integers(0, 1000, size)
        end, alone = start + rng.integers(0, 90, size), np.zeros(size, np.int64)
        for lengths in (union_lengths, spans):
            assert lengths(start, end, alone, 1).tolist() == lengths(start, end, alone, 2).tolist()[:1]
    for lengths in (union_lengths, spans):
        assert lengths(start[:0], end[:0], alone[:0], 1).tolist() == [0]


def test_innermost_selected_climbs_over_deep_chains():
    parent = np.array([-1, *range(99)], np.int32)
    for chosen in ([], [0], [99], [3, 40, 41], range(100)):
        selected = np.isin(np.arange(100), list(chosen))
        expected = [max((row for row in chosen if row <= event), default=-1) for event in range(100)]
        assert innermost_selected(selected, parent).tolist() == expected
