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
        (("gather", SQUARE, [[4, 4], [4, 4]]), ("gather", SQUARE, [[]], ("Float", "")), "all_arrived"),
        (("_all_gather_base", [[8]], [[16]]), ("_all_gather_base", [[8]], [[16]]), "all_arrived"),
        (("_all_gather_base", [[8]], [[24]]), ("_all_gather_base", [[8]], [[16]]), "mismatch"),
        (("all_gather", SQUARE, SQUARE), ("_all_gather_base", SQUARE, SQUARE), "mismatch"),
        (("all_to_all_single", [[8]], [[12]]), ("all_to_all_single", [[12]], [[8]]), "all_arrived"),
    ],
)
def test_a_pair(folder, recorder, mine, theirs, expected):
    groups = {"0": ("default_pg", [0, 1])}
    dumps = {r: recorder.dump([pending(recorder, *one)], groups) for r, one in enumerate((mine, theirs))}
    assert folder.write(dumps).report().verdict.kind == expected


@pytest.mark.parametrize("backend", ["nccl", "ncclx", "xccl"])
def test_the_prefix_of_the_backend_does_not_matter(folder, recorder, backend):
    content = recorder.dump([recorder.entry(PG, 1, done=False, backend=backend)], {"0": ("default_pg", [0, 1])})
    report = folder.write({0: content, 1: recorder.dump([], {"0": ("default_pg", [0, 1])})}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])


def test_names_of_sends_hold_ranks_within_the_group(folder, recorder):
    """Group {2, 5}: its rank 0 is the job's rank 2."""
    groups = {"9": ("pair", [2, 5])}
    sends = recorder.dump([recorder.p2p(("9", "pair"), 1, "send 0->1", 0)], groups)
    report = folder.write({2: sends, 5: recorder.dump([], groups)}).report()
    assert 5 in report.verdict.ranks
    assert report.data.waits[0].waits_for == [5]
