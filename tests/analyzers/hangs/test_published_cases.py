"""The pairs that the official analyzer publishes as its tests, both pending on two ranks: sequence numbers are strings
and dtypes bare strings there. It says what a pair is; here a matching pair that hangs is `all_arrived`.
"""

import pytest

PG = ("0", "default_pg")
SQUARE, OTHER = [[4, 4]], [[5, 4]]


def pending(recorder, op, inputs, outputs, dtypes=("Float", "Float")):
    return recorder.entry(
        PG,
        1,
        op=op,
        done=False,
        collective_seq_id="1",
        input_sizes=inputs,
        output_sizes=outputs,
        input_dtypes=dtypes[0],
        output_dtypes=dtypes[1],
    )


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (("all_reduce", SQUARE, SQUARE), ("all_reduce", SQUARE, SQUARE), "all_arrived"),
        (("all_reduce", SQUARE, SQUARE), ("all_gather", SQUARE, SQUARE), "mismatch"),
        (("all_to_all", SQUARE, SQUARE), ("all_to_all", OTHER, OTHER), "all_arrived"),
        (("all_reduce", OTHER, SQUARE), ("all_reduce", SQUARE, SQUARE), "mismatch"),
        (("all_reduce", SQUARE, OTHER), ("all_reduce", SQUARE, SQUARE), "mismatch"),
        (("all_reduce", SQUARE, SQUARE, ("Half", "Half")), ("all_reduce", SQUARE, SQUARE), "mismatch"),
        (("all_reduce", SQUARE, SQUARE, ("Float", "Half")), ("all_reduce", SQUARE, SQUARE), "mismatch"),
        (("all_reduce", SQUARE, SQUARE), ("allreduce_coalesced", SQUARE, SQUARE), "mismatch"),
        (("reduce_scatter", SQUARE, SQUARE), ("_reduce_scatter_base", SQUARE, SQUARE), "mismatch"),
        (("all_to_all", SQUARE, SQUARE), ("all_to_all_single", SQUARE, SQUARE), "mismatch"),
        (("gather", SQUARE, [[4, 4], [4, 4]]), ("gather", SQUARE, [[]], ("Float", "")), "all_arrived"),
        (("gather", SQUARE, [[4, 4], [4, 4]]), ("gather", SQUARE, SQUARE, ("Float", "")), "all_arrived"),
        (("_all_gather_base", [[8]], [[16]]), ("_all_gather_base", [[8]], [[16]]), "all_arrived"),
        (("_all_gather_base", [[8]], [[24]]), ("_all_gather_base", [[8]], [[16]]), "mismatch"),
        (("all_gather", SQUARE, SQUARE), ("_all_gather_base", SQUARE, SQUARE), "mismatch"),
        (("all_to_all_single", [[8]], [[12]]), ("all_to_all_single", [[12]], [[8]]), "all_arrived"),
        (("all_to_all_single", [[8]], [[12]]), ("all_to_all_single", [[12]], [[9]]), "mismatch"),
    ],
)
def test_a_pair(folder, recorder, mine, theirs, expected):
    groups = {"0": ("default_pg", [0, 1])}
    dumps = {r: recorder.dump([pending(recorder, *one)], groups) for r, one in enumerate((mine, theirs))}
    assert folder.write(dumps).report().verdict.kind == expected


KNOWN = (
    "broadcast", "all_gather", "_all_gather_base", "all_gather_into_tensor_coalesced", "all_reduce",
    "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "gather", "scatter", "all_to_all", "all_to_all_single", "barrier",
)  # fmt: skip


@pytest.mark.parametrize("op", KNOWN)
def test_an_operation_with_itself(folder, recorder, op):
    content = recorder.dump([pending(recorder, op, SQUARE, SQUARE)], {"0": ("default_pg", [0, 1])})
    assert folder.write({0: content, 1: content}).report().verdict.kind == "all_arrived"


def test_sizes_of_a_send_and_its_recv(folder, recorder):
    groups = {"9": ("pair", [2, 5])}
    sends = recorder.dump([recorder.p2p(("9", "pair"), 1, "send 0->1", 0)], groups)
    recv = recorder.p2p(("9", "pair"), 1, "recv 1<-0", 0) | {"output_sizes": OTHER, "input_sizes": OTHER}
    report = folder.write({2: sends, 5: recorder.dump([recv], groups)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [2, 5])
    assert "send of 4x4" in report.verdict.sentence
    assert "recv of 5x4" in report.verdict.sentence


@pytest.mark.parametrize("backend", ["nccl", "ncclx", "xccl"])
def test_the_prefix_of_the_backend_does_not_matter(folder, recorder, backend):
    content = recorder.dump([recorder.entry(PG, 1, done=False, backend=backend)], {"0": ("default_pg", [0, 1])})
    report = folder.write({0: content, 1: recorder.dump([], {"0": ("default_pg", [0, 1])})}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])


def test_a_name_without_a_backend_is_an_operation(folder, recorder):
    """The official analyzer fails with an assertion in this case."""
    bare = recorder.entry(PG, 1, done=False) | {"profiling_name": "all_reduce"}
    groups = {"0": ("default_pg", [0, 1])}
    report = folder.write({0: recorder.dump([bare], groups), 1: recorder.dump([], groups)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])
    assert "all_reduce" in report.verdict.sentence


def test_names_of_sends_hold_ranks_within_the_group(folder, recorder):
    """In the group {2, 5}, rank 0 of the group is rank 2 of the job."""
    groups = {"9": ("pair", [2, 5])}
    sends = recorder.dump([recorder.p2p(("9", "pair"), 1, "send 0->1", 0)], groups)
    report = folder.write({2: sends, 5: recorder.dump([], groups)}).report()
    assert 5 in report.verdict.ranks
    assert report.data.waits[0].waits_for == [5]


def coalesced(recorder, *members):
    """Return entries of one coalesced launch: all have the same sequence number."""
    return [recorder.entry(PG, 1, record=i, done=False, **one) for i, one in enumerate(members)]


CLOSING = {"op": "coalesced", "input_sizes": [], "output_sizes": [], "input_dtypes": [], "output_dtypes": []}
GATHER = {"op": "_all_gather_base", "input_sizes": SQUARE, "output_sizes": [[8, 4]]}
SCATTER = {"op": "_reduce_scatter_base", "input_sizes": [[8, 4]], "output_sizes": SQUARE}


@pytest.mark.parametrize(
    "launch",
    [
        [{"op": "allreduce_coalesced"}],
        [{"op": "broadcast"}, {"op": "broadcast"}, CLOSING],
        [GATHER, GATHER, CLOSING],
        [SCATTER, SCATTER, CLOSING],
    ],
)
def test_a_coalesced_launch_is_one_operation(folder, recorder, launch):
    content = recorder.dump(coalesced(recorder, *launch), {"0": ("default_pg", [0, 1])})
    report = folder.write({0: content, 1: content}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("all_arrived", [0, 1])
    assert [(w.rank, w.seq) for w in report.data.waits] == [(0, 1), (1, 1)]


@pytest.mark.parametrize("place", [0, 1])
def test_a_coalesced_launch_with_one_different_size(folder, recorder, place):
    """Two ranks, so a tie; the official analyzer names the record, here the sizes of the whole launch are shown."""
    groups = {"0": ("default_pg", [0, 1])}
    launch = [GATHER, GATHER, CLOSING]
    odd = [*launch]
    odd[place] = GATHER | {"input_sizes": OTHER, "output_sizes": [[10, 4]]}
    dumps = {r: recorder.dump(coalesced(recorder, *one), groups) for r, one in enumerate((launch, odd))}
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [0, 1])
    assert "5x4" in report.verdict.sentence
    assert "_all_gather_base coalesced" in report.verdict.sentence


HOOKED = [
    ("all_gather", SQUARE, [[4, 4], [4, 4]], [[4, 4]] * 3),
    ("reduce_scatter", [[4, 4], [4, 4]], SQUARE, [[5, 4]]),
    ("_all_gather_base", [[8]], [[16]], [[17]]),
    ("_reduce_scatter_base", [[16]], [[8]], [[9]]),
]


@pytest.mark.parametrize(("op", "inputs", "outputs", "wrong"), HOOKED)
@pytest.mark.parametrize("both", [False, True])
def test_sizes_that_break_the_rule_of_an_operation(folder, recorder, op, inputs, outputs, wrong, both):
    """The official analyzer also fails where both ranks break the rule alike. PyTorch refuses such a call before it is
    issued, so that no job can hang in it; ranks that agree and do not go on are `all_arrived` here.
    """
    groups = {"0": ("default_pg", [0, 1])}
    bad, good = pending(recorder, op, inputs, wrong), pending(recorder, op, inputs, outputs)
    dumps = {0: recorder.dump([bad], groups), 1: recorder.dump([bad if both else good], groups)}
    report = folder.write(dumps).report()
    expected = ("all_arrived", [0, 1]) if both else ("mismatch", [0])
    assert (report.verdict.kind, report.verdict.ranks) == expected


def test_members_of_one_state_and_of_two(folder, recorder):
    """For scheduled and completed the official analyzer reports a STATE mismatch; here the late rank is named."""
    groups = {"0": ("default_pg", [0, 1])}
    dumps = {r: recorder.dump([recorder.entry(PG, 1, done=r == 1)], groups) for r in range(2)}
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("lagging", [0])
