"""Depths, parents and sums of nested events, compared with computations that look at every pair."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.traces.columns import (
    NestedEvents,
    inclusive_sums,
    innermost_at,
    innermost_selected,
    is_outermost,
    nest,
    self_times,
)

NESTED = settings(max_examples=60, deadline=None)


@st.composite
def nested(draw):
    """Return (lane, start, end) of events that enclose each other or are disjoint, in random order."""
    events = []

    def call(lane, low, high, depth):
        events.append((lane, low, high))
        at = low
        while depth < 4 and at + 1 < high and draw(st.booleans()):
            begin = draw(st.integers(at, high - 1))
            end = draw(st.integers(begin + 1, high))
            call(lane, begin, end, depth + 1)
            at = end

    for lane in range(draw(st.integers(1, 3))):
        call(lane, 0, draw(st.integers(1, 60)), 0)
    return [np.array(column) for column in zip(*draw(st.permutations(events)), strict=True)]


def encloses(events, outer, inner):
    lane, start, end = events
    if lane[outer] != lane[inner] or not start[outer] <= start[inner] <= end[inner] <= end[outer]:
        return False
    return (start[outer], end[outer]) != (start[inner], end[inner]) or outer < inner


@NESTED
@given(nested())
def test_depth_parent_and_innermost(events):
    depth, parent = nest(*events)
    count = len(depth)
    around = [[j for j in range(count) if j != i and encloses(events, j, i)] for i in range(count)]
    assert depth.tolist() == [len(outer) for outer in around]
    for i, outer in enumerate(around):
        assert parent[i] == (max(outer, key=lambda j: depth[j]) if outer else -1)
    chosen = np.arange(count) % 3 == 0
    found = innermost_selected(chosen, parent)
    for i, outer in enumerate(around):
        candidates = [j for j in [*outer, i] if chosen[j]]
        assert found[i] == (max(candidates, key=lambda j: depth[j]) if candidates else -1)


@NESTED
@given(nested())
def test_sums_over_what_is_inside(events):
    depth, parent = nest(*events)
    _, start, end = events
    values = np.arange(len(depth))
    own, sums = self_times(parent, start, end), inclusive_sums(values, values, parent)
    for i in range(len(depth)):
        assert sums[i] == i + sum(j for j in range(len(depth)) if j != i and encloses(events, i, j))
        assert own[i] == sum(1 for at in range(start[i], end[i]) if not inside_child(events, parent, i, at))


def inside_child(events, parent, row, at):
    _, start, end = events
    return any(parent[j] == row and start[j] <= at < end[j] for j in range(len(parent)))


@NESTED
@given(nested(), st.integers(0, 1 << 40))
def test_outermost_of_its_name(events, after):
    lane, start, end = events
    name = lane * 2 + np.arange(len(lane)) % 2
    found = is_outermost(name, start + after, end + after)
    for i in range(len(lane)):
        assert found[i] == (not any(name[j] == name[i] and j != i and encloses(events, j, i) for j in range(len(lane))))


def test_an_annotation_that_begins_inside_the_call_that_opens_it_is_around_what_follows():
    events = {
        "main": (0, 1000),
        "step": (10, 900),
        "__enter__": (20, 30),
        "record_function_enter": (22, 29),
        "forward": (25, 95),
        "call": (40, 60),
        "mm": (45, 55),
        "call again": (60, 80),
        "__exit__": (90, 100),
        "after": (100, 120),
    }
    names, start = list(events), np.array([begin for begin, _ in events.values()])
    end = np.array([end for _, end in events.values()])
    depth, parent = nest(np.zeros(len(names), int), start, end)
    around = {name: names[row] if row >= 0 else "" for name, row in zip(names, parent.tolist(), strict=True)}
    assert around == {
        "main": "",
        "step": "main",
        "__enter__": "step",
        "record_function_enter": "__enter__",
        "forward": "step",
        "call": "forward",
        "mm": "call",
        "call again": "forward",
        "__exit__": "forward",
        "after": "step",
    }
    assert [depth[names.index(name)] for name in ("main", "step", "forward", "call", "mm")] == [0, 1, 2, 3, 4]


@NESTED
@given(nested(), st.lists(st.tuples(st.integers(0, 2), st.integers(-2, 65)), max_size=20))
def test_what_runs_at_a_moment(events, asked):
    lane, start, end = events
    depth, parent = nest(*events)
    found = innermost_at(NestedEvents(*events, parent), *np.array(asked, int).reshape(-1, 2).T)
    for (of, at), row in zip(asked, found.tolist(), strict=True):
        running = [i for i in range(len(lane)) if lane[i] == of and start[i] <= at < end[i]]
        assert row == (max(running, key=lambda i: depth[i]) if running else -1)
