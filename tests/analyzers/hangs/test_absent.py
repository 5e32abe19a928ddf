"""Place a rank without a dump: the operation that it never joined, and the groups that it belongs to."""

import pytest

from tests.analyzers.hangs.test_last_word import beat, side_files


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


DEFAULT = ("0", "default_pg")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_job_is_not_healthy_while_the_dump_of_a_rank_is_missing(folder, recorder, backend):
    """Ranks 0, 1 and 3 have completed all that they issued. Rank 2 left nothing, and may be the one that broke."""
    groups = {"0": ("default_pg", range(4))} if backend == "nccl" else {}
    content = recorder.dump([recorder.entry(DEFAULT, seq, backend=backend) for seq in (1, 2)], groups)
    verdict = folder.write({0: content, 1: content, 3: content}).report().verdict
    assert (verdict.status, verdict.kind, verdict.ranks) == ("unknown", "unknown", [])
    assert verdict.sentence == (
        "There is no dump of rank 2, so nothing shows whether it hangs, has died or is well; no other rank waits"
    )
    assert "no dump of rank 2" in verdict.missing


@pytest.mark.parametrize(
    ("op", "inputs", "outputs"),
    [
        ("all_gather", [[8]], [[8]] * 4),
        ("_all_gather_base", [[8]], [[32]]),
        ("_reduce_scatter_base", [[32]], [[8]]),
    ],
)
@pytest.mark.parametrize("done", [True, False])
def test_sizes_of_tensors_show_that_the_highest_rank_is_missing(folder, recorder, op, inputs, outputs, done):
    """Gloo's list of groups is wrong, but an all_gather of four parts has four members."""
    sizes = {"input_sizes": inputs, "output_sizes": outputs}
    content = recorder.dump([recorder.entry(DEFAULT, 1, op=op, backend="gloo", done=done, **sizes)], {})
    report = folder.write(dict.fromkeys(range(3), content)).report()
    assert report.data.world_size == 4
    assert (report.verdict.kind, report.verdict.ranks) == (("unknown", []) if done else ("dead", [3]))


def test_a_rank_that_ended_cleanly_needs_no_dump(folder, recorder):
    content = recorder.dump([recorder.entry(DEFAULT, 1, backend="gloo")], {})
    side_files(folder, 3)
    beat(folder, 2, recorder.start_ns, b"done")
    assert folder.write({0: content, 1: content}).report().verdict.kind == "healthy"


def test_a_rank_without_a_dump_is_not_called_dead_without_proof(folder, recorder):
    content = recorder.dump([recorder.entry(DEFAULT, 1, backend="gloo", done=False)], {})
    verdict = folder.side("run.json", {"world_size": 3}).write({0: content, 1: content}).report().verdict
    assert verdict.sentence == (
        "Rank 2 is missing in all_reduce #1 of process group default_pg: it left no dump, so it died or could not write"
        " one; ranks 0-1 wait for it"
    )


def test_ranks_that_waited_for_another_did_not_die_of_their_own_fault(folder, recorder):
    """A rank that gives up waiting ends with an exit code, too; only its dump shows that it waited."""
    content = recorder.dump([recorder.entry(DEFAULT, 1, backend="gloo", done=False)], {})
    codes = {"0": 1, "1": 1, "2": 1, "3": -15}
    folder.side("run.json", {"world_size": 4, "exit_codes": codes}).write(dict.fromkeys(range(3), content))
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [3])
    assert report.verdict.sentence == (
        "Rank 3 never joined all_reduce #1 of process group default_pg: it left no dump, and SIGTERM ended it at last;"
        " ranks 0-2 wait for it"
    )
    assert report.findings[0].next.startswith("See where the rank is")


def test_exit_codes_beside_a_killed_rank_follow_from_it(folder, recorder):
    """Gloo flags what failed as done: the dumps of the ranks that lost rank 2 show nothing."""
    content = recorder.dump([recorder.entry(DEFAULT, 1, backend="gloo")], {})
    codes = {"0": -15, "1": 1, "2": -9, "3": 1}
    folder.side("run.json", {"world_size": 4, "exit_codes": codes}).write(dict.fromkeys((0, 1, 3), content))
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("dead", [2])
