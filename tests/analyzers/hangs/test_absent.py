"""Place a rank without a dump: the operation that it never joined, and the groups that it belongs to."""

import pytest


@pytest.mark.parametrize("group", ["tp", "dp", "default"])
def test_the_operation_is_the_first_that_it_missed(folder, world, group):
    """Ranks wait for it in several groups; the answer is the operation that comes first in its peers' program."""
    mesh = world(tp=2, dp=3, pp=2)
    dumps = mesh.dumps("missing", 5, group)
    program = mesh.program(4)
    report = folder.write({rank: content for rank, content in dumps.items() if rank != 5}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [5])
    name, desc, _ = mesh.group(group, 5)
    missed = max(i for i, (kind, _) in enumerate(program) if kind == group)
    seq = sum(kind == group for kind, _ in program[: missed + 1])
    assert (report.data.culprits[0].group, report.data.culprits[0].group_desc) == (name, desc)
    assert report.data.culprits[0].seq == seq


def gloo(recorder, rank, group, *, done):
    entries = [
        recorder.entry(("0", "default_pg"), 1, backend="gloo"),
        recorder.entry(group, 1, backend="gloo", done=done, record=2),
    ]
    return recorder.dump(entries, {})


def test_one_lost_rank_is_in_each_group_that_waits(folder, recorder):
    """Without a list of groups: all ranks known to use the group wait in it, so another member must be missing."""
    mesh = {0: "1", 2: "1", 1: "2"}
    dumps = {rank: gloo(recorder, rank, (name, "mesh_dp"), done=name == "1") for rank, name in mesh.items()}
    folder.side("run.json", {"world_size": 4}).write(dumps)
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [3])
    assert {g.name: g.ranks for g in report.data.groups} == {"0": [0, 1, 2, 3], "1": [0, 2], "2": [1, 3]}


def test_the_spacing_of_the_mesh_places_several_lost_ranks(folder, recorder):
    """Groups have every other rank, so 4 belongs to the group of 0, 2 and 6, and 7 to that of 1, 3 and 5."""
    names = {0: "1", 2: "1", 6: "1", 1: "2", 3: "2", 5: "2"}
    dumps = {rank: gloo(recorder, rank, (name, "mesh_dp"), done=False) for rank, name in names.items()}
    folder.side("run.json", {"world_size": 8}).write(dumps)
    report = folder.report()
    assert {g.name: g.ranks for g in report.data.groups if g.desc == "mesh_dp"} == {
        "1": [0, 2, 4, 6],
        "2": [1, 3, 5, 7],
    }
    assert report.verdict.ranks == [4, 7]


def test_a_group_that_several_lost_ranks_may_belong_to_is_named(folder, recorder):
    dumps = {rank: gloo(recorder, rank, ("1", "mesh_dp"), done=False) for rank in (0, 2)}
    folder.side("run.json", {"world_size": 7}).write(dumps | {rank: recorder.dump([], {}) for rank in (1, 3, 5)})
    assert "no map of groups was recorded: ranks 4, 6 may belong to mesh_dp" in folder.report().verdict.missing
