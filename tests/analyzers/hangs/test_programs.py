"""Comparison of what the ranks did before the hang: differences, and missing entries that prove nothing."""

import os

import pytest

GROUPS = {
    "0": ("default_pg", range(4)),
    "t0": ("tp", [0, 1]),
    "t1": ("tp", [2, 3]),
    "p0": ("pp", [0, 2]),
    "p1": ("pp", [1, 3]),
}
STEP = ["tp.10", "tp.11", "p2p", "default.20"]
"""The operations of a step: ranks 0 and 1 send to ranks 2 and 3; both pairs share groups of kind tp."""


def group_of(kind, rank):
    return {"tp": f"t{rank // 2}", "p2p": f"p{rank % 2}", "default": "0"}[kind]


def entries_of(recorder, rank, calls, done):
    """Return `calls` as Flight Recorder entries, the first `done` of them completed."""
    seqs, found = {}, []
    for record, call in enumerate(calls):
        kind, _, line = call.partition(".")
        name = group_of(kind, rank)
        seqs[name] = seqs.get(name, 0) + 1
        group = (name, GROUPS[name][0])
        if kind == "p2p":
            op = "send 0->1" if rank < 2 else "recv 1<-0"
            found.append(recorder.p2p(group, seqs[name], op, record, done=record < done))
        else:
            found.append(recorder.entry(group, seqs[name], line=int(line), record=record, done=record < done))
    return found


@pytest.fixture
def job(folder, recorder):
    """Fixture: a function that writes the dumps of four ranks, given {rank: (calls, number of completed calls)}."""

    def write(ranks):
        groups = lambda rank: {n: g for n, g in GROUPS.items() if rank in g[1]}  # noqa: E731
        return folder.write({r: recorder.dump(entries_of(recorder, r, *ranks[r]), groups(r)) for r in ranks})

    return write


def test_one_of_several_equal_operations_left_out(job):
    """Rank 1's next all_reduce is matched with the one that it left out, so no signature differs."""
    honest = STEP * 4
    guilty = [*STEP * 3, *STEP[1:]]
    report = job({0: (honest, 13), 1: (guilty, 14), 2: (honest, 14), 3: (honest, 15)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("skipped", [1])
    assert report.data.culprits[0].group == "t0"


def test_a_send_left_out_has_no_partner(job):
    honest = STEP * 4
    guilty = [*STEP * 3, "tp.10", "tp.11", "default.20"]
    report = job({0: (honest, 15), 1: (guilty, 14), 2: (honest, 15), 3: (honest, 14)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("unmatched_p2p", [1])


def test_two_operations_swapped_while_the_host_ran_ahead(job):
    honest = STEP * 4
    guilty = [*STEP * 3, "tp.10", "tp.11", "default.20", "p2p"]
    report = job({0: (honest, 15), 1: (guilty, 14), 2: (honest, 15), 3: (honest, 14)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("order_cycle", [1])


def test_a_rank_that_stops_short_of_its_send_is_stuck_and_left_nothing_out(job):
    """The receiver reached its recv long before the stuck rank issued its last operation."""
    honest, short = STEP * 4, [*STEP * 3, "tp.10", "tp.11"]
    report = job({0: (honest, 15), 1: (short, 14), 2: (honest, 15), 3: ([*STEP * 3, "p2p"], 12)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])


def test_a_lost_dump_of_a_rank_that_waits_too_accuses_nobody(job):
    honest, short = STEP * 4, [*STEP * 3, "tp.10", "tp.11", "p2p"]
    report = job({0: (honest, 15), 1: (short, 15), 2: (honest, 15)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])
    assert "no dump of rank 3" in report.verdict.missing


@pytest.mark.parametrize(("after_ms", "kind"), [(1, "healthy"), (600_000, "all_arrived")])
def test_files_written_while_the_job_moved(job, folder, recorder, after_ms, kind):
    calls = STEP * 4
    job(dict.fromkeys(range(4), (calls, len(calls) - 1)))
    now = recorder.start_ns + (len(calls) + after_ms) * 1_000_000
    for path in folder.path.iterdir():
        os.utime(path, ns=(now, now))
    assert folder.report().verdict.kind == kind


def test_many_ranks_behind_what_others_completed_were_dumped_earlier(job):
    early, late = STEP * 3, [*STEP * 3, "tp.10", "tp.11", "p2p", "default.20", "tp.10"]
    report = job({0: (late, 16), 1: (early, 12), 2: (early, 12), 3: (late, 16)}).report()
    assert report.verdict.kind == "healthy"


def test_lagging_is_seen_in_dumps_of_unfinished_operations_only(folder, recorder):
    full = {
        rank: recorder.dump(entries_of(recorder, rank, STEP, done), GROUPS) for rank, done in enumerate((1, 0, 2, 2))
    }
    for content in full.values():
        content["entries"] = [e for e in content["entries"] if e["state"] != "completed"]
    report = folder.write(full).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("lagging", [1])


def test_a_forgotten_old_operation_is_kept_however_long_the_ring(folder, recorder):
    """Readers keep only the end of a ring buffer, but the operation that hangs may have been issued long before."""
    groups = {"a": ("left", [0, 1]), "b": ("right", [0, 1])}
    many = [recorder.entry(("b", "right"), seq, record=seq) for seq in range(1, 3000)]
    first = recorder.entry(("a", "left"), 1, record=0, done=False)
    report = folder.write({0: recorder.dump([first, *many], groups), 1: recorder.dump(many, groups)}).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [1])
    assert report.data.culprits[0].group == "a"


def test_a_batch_waits_for_the_rest_of_its_peers_batch(folder, recorder):
    """In an exchange in a ring of three, rank 0 has met both neighbours; rank 2 still waits for rank 1's operation."""
    groups = {"r": ("ring", [0, 1, 2])}

    def batch(*names):
        return recorder.dump([recorder.p2p(("r", "ring"), 1, name, 0) for name in names], groups)

    dumps = {
        0: batch("send 0->1", "recv 0<-2"),
        1: batch("recv 1<-0"),
        2: batch("send 2->0", "recv 2<-1"),
    }
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("unmatched_p2p", [1])
    assert {w.rank: w.waits_for for w in report.data.waits}[0] == [2]
    assert {w.rank: w.waits_for for w in report.data.waits}[2] == [1]


@pytest.mark.parametrize(("completed", "kind"), [(6, "unknown"), (8, "all_arrived")])
def test_a_ring_that_lost_its_first_pending_operations_does_not_show_where_a_rank_is(folder, recorder, completed, kind):
    """Both rings begin at operation 9. If the last completed one is the sixth, both ranks are in the lost seventh."""
    groups = {"0": ("default_pg", [0, 1])}
    held = [recorder.entry(("0", "default_pg"), seq, record=seq, done=False) for seq in (9, 10)]
    status = {"last_enqueued_collective": 10, "last_started_collective": -1, "last_completed_collective": completed}
    content = recorder.dump(held, groups) | {"pg_status": {"0": status}}
    report = folder.write({0: content, 1: content}).report()
    assert report.verdict.kind == kind
    assert any("TORCH_FR_BUFFER_SIZE" in m for m in report.verdict.missing) == (kind == "unknown")


def test_a_tie_is_broken_by_what_the_line_issues_in_other_groups(folder, recorder):
    groups = {f"t{n}": ("tp", [2 * n, 2 * n + 1]) for n in range(3)}
    sizes = {0: (6, 4), 1: (4, 4), 2: (4, 4), 3: (4, 4), 4: (4, 4), 5: (4, 4)}
    dumps = {}
    for rank, size in sizes.items():
        name = f"t{rank // 2}"
        seq = 5 if rank < 2 else 8
        dumps[rank] = recorder.dump([recorder.entry((name, "tp"), seq, size=size, line=7, done=rank > 1)], groups)
    report = folder.write(dumps).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [0])


@pytest.mark.parametrize(("before", "kind"), [(2, "mismatch"), (1, "skipped")])
def test_one_round_more_of_a_loop_is_no_skipped_operation(folder, recorder, before, kind):
    """Each step reduces some metrics and ends in a barrier; rank 2 has one metric more than the others."""
    group = ("0", "default_pg")
    steps = [*(["all_reduce", "barrier"] * 3), *["all_reduce"] * before]

    def content(last):
        calls = [*steps, last]
        entries = [
            recorder.entry(group, seq, op=op, line=len(op), backend="gloo", done=seq < len(calls))
            for seq, op in enumerate(calls, 1)
        ]
        return recorder.dump(entries, {})

    dumps = {rank: content("all_reduce" if rank == 2 else "barrier") for rank in range(3)}
    verdict = folder.write(dumps).report().verdict
    assert (verdict.kind, verdict.ranks) == (kind, [2])


def gloo_dumps(folder, recorder, reached, op="all_reduce"):
    """Write dumps of gloo, as copied from elsewhere; `reached` has how many collectives each rank completed, issued."""
    for rank, (completed, issued) in enumerate(reached):
        entries = [
            recorder.entry(("0", "default_pg"), seq, op=op, backend="gloo", done=seq <= completed)
            for seq in range(1, issued + 1)
        ]
        folder.write({rank: recorder.dump(entries, {})})
    return folder.report()


@pytest.mark.parametrize(
    ("reached", "status"),
    [
        ([(9, 10), (11, 12), (12, 12)], "ok"),
        ([(9, 10), (40, 41), (45, 46)], "ok"),
        ([(9, 9), (11, 12), (11, 12)], "ok"),
        ([(9, 10), (10, 11), (10, 11)], "unknown"),
        ([(9, 10), (10, 10), (10, 10)], "ok"),
    ],
)
def test_dumps_of_gloo_at_different_moments_show_no_lagging_rank(folder, recorder, reached, status):
    report = gloo_dumps(folder, recorder, reached)
    assert (report.verdict.status, report.verdict.ranks, report.findings) == (status, [], [])


@pytest.mark.parametrize(
    ("reached", "op", "ranks"),
    [
        ([(9, 9), (9, 10), (9, 10)], "all_reduce", [0]),
        ([(9, 9), (10, 10), (10, 10)], "all_reduce", []),  # nobody waits; gloo flags what failed as done
        ([(9, 9), (11, 12), (9, 10)], "broadcast", [0]),  # the root of a broadcast does not wait for the others
    ],
)
def test_a_rank_that_is_late_in_dumps_of_gloo_is_named(folder, recorder, reached, op, ranks):
    report = gloo_dumps(folder, recorder, reached, op)
    assert report.verdict.ranks == ranks
