"""The tables of a hang: which rank waits for which."""

import pandas as pd
from msgspec import structs

from analyzers.hangs.model import Culprit, Group, HangClass, HangData, Wait
from analyzers.hangs.views import IssuedAt
from workbench.present.tables.hang import hang_tables, side_by_side, victim_stacks, waits
from workbench.web.pages.hang import group_names

MESHES = [Group(name=str(i), desc="mesh_pp", ranks=[i, i + 512]) for i in range(512)]


def job(waiting):
    groups = [*MESHES, Group(name="900", desc="mesh_tp", ranks=[640, 641, 642])]
    return HangData(world_size=1024, ranks_with_dump=[], groups=groups, culprits=[], waits=waiting)


def test_many_waiting_ranks_share_rows_and_the_nearest_to_the_cause_come_first():
    pipeline = [Wait(rank=i, waits_for=[i + 512], group=str(i), seq=20, operation="recv") for i in range(512)]
    beside = [Wait(rank=rank, waits_for=[643], group="900", seq=110, operation="all_reduce") for rank in (640, 642)]
    assert waits(job([*pipeline, *beside])).rows == (
        ("640, 642", "643", "mesh_tp", "110"),
        ("0-511", "512-1023", "mesh_pp", "20"),
    )


def test_few_waiting_ranks_have_a_row_each():
    beside = [Wait(rank=rank, waits_for=[643], group="900", seq=110, operation="all_reduce") for rank in (640, 642)]
    gathered = Wait(rank=641, waits_for=[], group="900", seq=111, operation="all_gather")
    assert waits(job([*beside, gathered])).rows == (
        ("640", "643", "mesh_tp", "110"),
        ("642", "643", "mesh_tp", "110"),
        ("641", "no rank: all have arrived", "mesh_tp", "111"),
    )


def test_the_stack_of_those_who_wait_directly_is_shown_without_library_frames():
    """Most ranks wait for others that wait; the ranks nearest to the cause say more."""
    beside = [Wait(rank=rank, waits_for=[643], group="900", seq=110, operation="all_reduce") for rank in (640, 642)]
    further = [Wait(rank=rank, waits_for=[640], group="0", seq=3, operation="recv") for rank in (1, 2, 3)]
    culprit = Culprit(ranks=[643], kind=HangClass.HOST_STUCK, victims=[1, 2, 3, 640, 642])
    columns = ["depth", "name", "place", "ranks", "own"]
    stacks = pd.DataFrame(
        [
            (0, "main", "a.py:1", [1, 2, 3, 640, 642, 643], True),
            (1, "loop", "a.py:2", [643], True),
            (1, "recv", "a.py:9", [1, 2, 3], True),
            (1, "step", "a.py:3", [640, 642], True),
            (2, "all_reduce", "torch/distributed/c10d.py:7", [640, 642], False),
        ],
        columns=columns,
    )
    data = structs.replace(job([*beside, *further]), culprits=[culprit])
    [stack] = victim_stacks(data, stacks)
    assert stack.title == "Stack of ranks 640, 642, waiting, innermost frame first"
    assert stack.rows == (("step", "a.py:3"), ("main", "a.py:1"))
    assert victim_stacks(data, stacks.iloc[:0]) == []
    assert victim_stacks(data, stacks[stacks["name"].isin(["main", "loop"])].assign(ranks=[[643]] * 2)) == []


def test_process_groups_of_one_description_are_told_apart_by_their_ranks():
    """The largest comes first; those of equal size are in the order of their numbers."""
    groups = [
        Group(name="100", desc="mesh_dp", ranks=[*range(0, 64, 8)]),
        Group(name="11", desc="mesh_dp", ranks=[*range(1, 64, 8)]),
        Group(name="0", desc="default_pg", ranks=[*range(64)]),
    ]
    data = HangData(world_size=64, ranks_with_dump=[], groups=groups, culprits=[], waits=[])
    table = next(table for table in hang_tables(data) if table.title == "Process groups")
    assert table.rows == (
        ("0", "default_pg", "0-63"),
        ("11", "mesh_dp", "1-57, every 8th"),
        ("100", "mesh_dp", "0-56, every 8th"),
    )
    assert group_names(groups) == [
        ("0", "default_pg"),
        ("11", "mesh_dp, ranks 1-57, every 8th"),
        ("100", "mesh_dp, ranks 0-56, every 8th"),
    ]


def test_an_unknown_source_line_is_no_difference():
    """Only the operation or two recorded lines differ."""
    first, unknown = IssuedAt("all_reduce of 4 float32", "train.py:22"), IssuedAt("all_reduce of 4 float32", "")
    assert side_by_side(81, [first, unknown])[1] == ""
    assert side_by_side(81, [first, first._replace(line="train.py:23")])[1] == "≠"
    assert side_by_side(81, [first, IssuedAt("", "")])[1] == "≠"
