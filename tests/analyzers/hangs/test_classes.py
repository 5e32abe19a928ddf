"""Find every class of hang in synthetic NCCL dumps."""

import pickle
import random

import pytest

DEFAULT = {"0": ("default_pg", [0, 1])}
PG = ("0", "default_pg")


@pytest.mark.parametrize("shape", [(2, 2, 2), (8, 4, 2)])
@pytest.mark.parametrize("group", ["tp", "dp"])
@pytest.mark.parametrize(("kind", "expected"), [("missing", "host_stuck"), ("shape", "mismatch"), ("type", "mismatch")])
def test_names_the_culprit_in_a_mesh(folder, world, shape, group, kind, expected):
    mesh = world(*shape)
    if (kind != "missing") and len(mesh.group(group, 0)[2]) < 3:
        pytest.skip("two sides of one rank each are a tie")
    culprit = mesh.size * 5 // 8
    report = folder.write(mesh.dumps(kind, culprit, group)).report()
    assert (report.verdict.kind, report.verdict.ranks) == (expected, [culprit])
    first = report.data.culprits[0]
    if kind != "missing":
        assert first.group == mesh.group(group, culprit)[0]
    assert set(first.victims) == set(range(mesh.size)) - {culprit}
    assert f"Rank {culprit}" in report.verdict.sentence


@pytest.mark.parametrize("group", ["tp", "dp"])
def test_a_culprit_without_a_dump_is_named_and_said_to_be_missing(folder, world, group):
    mesh = world(8, 4, 2)
    ranks = [rank for rank in range(64) if rank != 43]
    report = folder.write(mesh.dumps("missing", 43, group, ranks=ranks)).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [43])
    assert "no dump of rank 43" in report.verdict.missing
    assert report.verdict.confidence < 0.9


def test_healthy_sets_raise_no_alarm(folder, world):
    assert folder.write(world(8, 4, 2).dumps()).report().verdict.kind == "healthy"


def test_ranks_may_be_renamed(folder, world, tmp_path):
    """The culprit follows from the dumps, not from the order in which they are found."""
    mesh = world(4, 2, 1)
    dumps = list(mesh.dumps("shape", 5, "tp").items())
    random.Random(1).shuffle(dumps)
    report = folder.write(dict(dumps), name="host7_rank_{}").report()
    assert report.verdict.ranks == [5]


def test_all_arrived(folder, recorder):
    content = recorder.dump([recorder.entry(PG, 1), recorder.entry(PG, 2, done=False)], DEFAULT)
    report = folder.write({0: content, 1: content}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("all_arrived", [0, 1])


def test_lagging(folder, recorder):
    slow = recorder.dump([recorder.entry(PG, 1, done=False)], DEFAULT)
    fast = recorder.dump([recorder.entry(PG, 1), recorder.entry(PG, 2, done=False)], DEFAULT)
    report = folder.write({0: fast, 1: slow}).report()
    assert report.verdict.kind == "lagging"
    assert report.verdict.ranks == [1]


def test_order_cycle_of_two_names_both(folder, recorder):
    groups = {"a": ("g_a", [0, 1]), "b": ("g_b", [0, 1])}
    dumps = {
        rank: recorder.dump([recorder.entry((name, f"g_{name}"), 1, done=False)], groups)
        for rank, name in enumerate("ab")
    }
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("order_cycle", [0, 1])


def test_ranks_that_wait_outside_of_a_cycle_decide_who_left_the_order(folder, recorder):
    groups = {"a": ("g_a", range(4)), "b": ("g_b", [2, 3])}
    dumps = {
        rank: recorder.dump([recorder.entry((name, f"g_{name}"), 1, done=False)], groups)
        for rank, name in enumerate("aaab")
    }
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("order_cycle", [3])
    assert report.data.culprits[0].victims == [0, 1, 2]


def test_order_cycle_of_four_names_the_one_that_left_the_order(folder, recorder):
    groups = {"a": ("g_a", range(4)), "b": ("g_b", range(4))}
    dumps = {
        rank: recorder.dump([recorder.entry((name, f"g_{name}"), 1, done=False)], groups)
        for rank, name in enumerate("aaba")
    }
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("order_cycle", [2])
    assert report.data.culprits[0].victims == [0, 1, 3]


def steps(recorder, count, *, skip=None, last_done=True):
    """Return, for each step, an all_reduce in the group `check` and one in the default group, except `check` in step
    `skip`.
    """
    entries, record = [], 0
    seqs = {"c": 0, "0": 0}
    for step in range(count):
        for name, desc, line in (("c", "check", 5), ("0", "default_pg", 6)):
            if step == skip and name == "c":
                continue
            seqs[name] += 1
            entries.append(recorder.entry((name, desc), seqs[name], line=line, record=record))
            record += 1
    return entries


def test_skipped_in_another_group(folder, recorder):
    groups = {"c": ("check", [0, 1]), "0": ("default_pg", [0, 1])}
    honest = [*steps(recorder, 4), recorder.entry(("c", "check"), 5, line=5, record=8, done=False)]
    guilty = [*steps(recorder, 4), recorder.entry(("0", "default_pg"), 5, line=6, record=8, done=False)]
    report = folder.write({0: recorder.dump(honest, groups), 1: recorder.dump(guilty, groups)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("skipped", [1])
    assert report.data.culprits[0].group == "c"
    assert report.data.culprits[0].seq == 5


@pytest.mark.parametrize("size", [2, 4])
def test_skipped_within_a_group_shows_as_a_shift(folder, recorder, size):
    groups = {"0": ("default_pg", range(size))}
    ops = ["all_reduce", "reduce", "broadcast"] * 4

    def program(kept, done):
        return [
            recorder.entry(PG, seq, op=op, line=10 + ops.index(op), record=seq, done=seq <= done)
            for seq, op in enumerate(kept, 1)
        ]

    honest = recorder.dump(program(ops[:8], 7), groups)
    guilty = recorder.dump(program([*ops[:7], ops[8]], 7), groups)
    report = folder.write({rank: guilty if rank == 1 else honest for rank in range(size)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("skipped", [1])
    assert report.data.culprits[0].seq == 8


def test_a_shift_says_that_the_numbers_of_the_rank_that_skipped_are_too_low(folder, recorder):
    def program(*ops):
        return [recorder.entry(PG, seq, op=op, record=seq, done=seq < 2) for seq, op in enumerate(ops, 1)]

    honest = program("all_reduce", "broadcast", "reduce", "barrier")
    guilty = program("all_reduce", "reduce", "barrier")
    report = folder.write({0: recorder.dump(honest, DEFAULT), 1: recorder.dump(guilty, DEFAULT)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("skipped", [1])
    assert report.data.culprits[0].detail == (
        "from here on it issues the same operations as the others, each with a sequence number that is lower by one"
    )


def test_a_tie_names_both_sides_and_says_so(folder, recorder):
    sizes = {0: (4, 4), 1: (8, 4)}
    dumps = {r: recorder.dump([recorder.entry(PG, 1, size=s, done=False)], DEFAULT) for r, s in sizes.items()}
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [0, 1])
    assert report.verdict.confidence <= 0.6
    assert report.verdict.sentence == (
        "Ranks 0-1 disagree in collective #1 of process group default_pg: rank 0 issued all_reduce of 4x4 float32"
        " (me/train.py:1),"
        " rank 1 issued all_reduce of 8x4 float32 (me/train.py:1)"
    )
    finding = report.findings[0]
    assert "Equally many ranks" in finding.why
    assert [fact.text for fact in finding.evidence[:2]] == [
        "Flight Recorder: rank 0 issued all_reduce of 4x4 float32 as collective #1 of process group default_pg",
        "Flight Recorder: rank 1 issued all_reduce of 8x4 float32 as collective #1 of process group default_pg",
    ]


def test_a_tie_is_broken_by_the_operations_own_rule(folder, recorder):
    good = recorder.entry(PG, 1, op="_all_gather_base", done=False, output_sizes=[[8, 4]])
    bad = recorder.entry(PG, 1, op="_all_gather_base", done=False, output_sizes=[[12, 4]])
    report = folder.write({0: recorder.dump([bad], DEFAULT), 1: recorder.dump([good], DEFAULT)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [0])
    # Both passed inputs of one shape, so naming the shapes would contradict the verdict.
    assert report.verdict.sentence == (
        "Rank 0 called _all_gather_base with an input and an output whose sizes do not fit, in collective #1 of process"
        " group default_pg (me/train.py:1); rank 1 waits for it"
    )
    [finding] = report.findings
    rule = "the output must have 2 times as many elements as the input."
    assert finding.why.endswith(f"the sizes of its input and output do not fit: {rule}")
    assert finding.next == f"Print the sizes of the input and the output at me/train.py:1 on rank 0: {rule}"
    assert finding.evidence[0].text == (
        "Flight Recorder: rank 0 issued _all_gather_base of 4x4 float32 with an output of 12x4 float32 as collective #1"
        " of process group default_pg"
    )


@pytest.mark.parametrize("op", ["all_to_all", "gather"])
def test_sizes_that_may_differ_are_no_mismatch(folder, recorder, op):
    dumps = {
        rank: recorder.dump([recorder.entry(PG, 1, op=op, size=(4 + rank, 4), done=False)], DEFAULT)
        for rank in range(2)
    }
    assert folder.write(dumps).report().verdict.kind == "all_arrived"


def test_two_culprits_are_both_named(folder, recorder):
    groups = {"a": ("g_a", [0, 1]), "b": ("g_b", [2, 3])}
    waiting = {0: "a", 2: "b"}
    dumps = {r: recorder.dump([recorder.entry((n, f"g_{n}"), 1, done=False)], groups) for r, n in waiting.items()}
    dumps |= {r: recorder.dump([], groups) for r in (1, 3)}
    report = folder.write(dumps).report()
    assert report.verdict.ranks == [1, 3]
    assert [c.victims for c in report.data.culprits] == [[0], [2]]


def test_a_met_send_and_recv_that_hang(folder, recorder):
    sends = recorder.dump([recorder.p2p(PG, 1, "send 0->1", 0)], DEFAULT)
    takes = recorder.dump([recorder.p2p(PG, 1, "recv 1<-0", 0)], DEFAULT)
    report = folder.write({0: sends, 1: takes}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("all_arrived", [0, 1])


def test_two_receivers_without_a_sender(folder, recorder):
    dumps = {r: recorder.dump([recorder.p2p(PG, 1, f"recv {r}<-{1 - r}", 0)], DEFAULT) for r in range(2)}
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("unmatched_p2p", [0, 1])


def test_a_sender_whose_peer_went_on(folder, recorder):
    alone = recorder.dump([recorder.p2p(PG, 1, "send 0->1", 0)], DEFAULT)
    other = recorder.dump([recorder.entry(("9", "own"), 1, record=50)], DEFAULT | {"9": ("own", [1])})
    report = folder.write({0: alone, 1: other}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("unmatched_p2p", [1])
    # Rank 1 waits in no message: it left one out.
    assert report.verdict.sentence == (
        "Rank 1 never issued the other half of send 0->1 of process group default_pg; rank 0 waits for it"
    )


def test_a_second_round_of_dumps_distinguishes_slow_from_stuck(folder, recorder):
    def look(step):
        waiting = [recorder.entry(PG, step, record=step * 10, done=False)]
        return {
            0: recorder.dump(waiting, DEFAULT),
            1: recorder.dump([recorder.entry(PG, step - 1, record=step * 10 - 5)], DEFAULT),
        }

    stuck = folder.write(look(5)).report()
    second = type(folder)(folder.path / "round_2")
    second.write(look(5))
    assert folder.report().verdict.confidence > stuck.verdict.confidence
    second.write(look(7))
    slow = folder.report()
    assert (slow.verdict.kind, slow.verdict.ranks, slow.verdict.status) == ("slow", [1], "warning")


def test_one_rank_that_holds_only_the_first_operation_did_not_join(folder, recorder):
    """This is one of the cases that the official analyzer publishes."""
    full = recorder.dump([recorder.entry(PG, 1), recorder.entry(PG, 2, done=False)], DEFAULT)
    short = recorder.dump([recorder.entry(PG, 1)], DEFAULT)
    assert folder.write({0: short, 1: full}).report().verdict.ranks == [0]


def test_one_name_with_different_members_is_two_groups(folder, recorder):
    dumps = {
        r: recorder.dump([recorder.entry(("7", "split"), 1, size=(r // 2 + 1, 4))], {"7": ("split", pair)})
        for r, pair in enumerate([[0, 1], [0, 1], [2, 3], [2, 3]])
    }
    report = folder.write(dumps).report()
    assert report.verdict.kind == "healthy"
    assert [g.ranks for g in report.data.groups] == [[0, 1], [2, 3]]


def test_chains_are_as_long_as_there_are_ranks(folder, recorder):
    """Rank k waits for rank k + 1, and the last one is stuck; a recursive search would exceed Python's limit."""
    count = 1200
    groups = {f"g{k}": (f"pair_{k}", [k, k + 1]) for k in range(count - 1)}
    dumps = {}
    for rank in range(count - 1):
        name = f"g{rank}"
        dumps[rank] = recorder.dump([recorder.entry((name, groups[name][0]), 1, done=False)], {name: groups[name]})
    dumps[count - 1] = recorder.dump([], {})
    report = folder.write(dumps, form=pickle.dumps).report()
    assert report.verdict.ranks == [count - 1]
    assert len(report.data.culprits[0].victims) == count - 1
