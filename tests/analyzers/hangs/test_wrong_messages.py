"""Messages to the wrong peer, and one too many, as the recorders' counts show them."""

import struct

from tests.analyzers.hangs.test_last_word import GROUP, SECOND, collection, side_files

LIBRARY = '  File "/site-packages/torch/distributed/distributed_c10d.py", line 2799 in {}\n'
OWN = '  File "/home/me/train.py", line {} in main\n  File "/home/me/train.py", line 9 in <module>\n'


def ranks_in(folder, recorder, calls, functions):
    """Write dumps and stacks of ranks in these functions, and how often each has issued each message."""
    world = len(functions)
    side_files(folder, world)
    for rank, function in enumerate(functions):
        entries = [recorder.entry(GROUP, 1, backend="gloo")]
        if function == "all_reduce":
            entries.append(recorder.entry(GROUP, 2, backend="gloo", done=False))
        folder.write({rank: recorder.dump(entries, {})})
        stack = LIBRARY.format(function) + OWN.format(20 + rank)
        folder.side(f"stacks_{rank}.txt", f"Thread 0x1 (most recent call first):\n{stack}")
        rows = [struct.pack("<qq40sq64s", n, SECOND, name.encode(), 0, b"0") for name, n in calls[rank].items()]
        (folder.path / f"p2p_{rank}.bin").write_bytes(b"".join(rows))
    collection(folder, recorder.start_ns + 9 * SECOND, ["ok"] * world)
    return folder.report().verdict


def test_the_rank_that_sends_to_the_wrong_peer_is_named_and_not_its_addressee(folder, recorder):
    """Rank 2 sent to rank 1 in place of rank 3, which waits for it; the others went on to a collective."""
    calls = [{"send 0->1": 1}, {"recv 1<-0": 1}, {"send 2->1": 1}, {"recv 3<-2": 1}]
    verdict = ranks_in(folder, recorder, calls, ["all_reduce", "all_reduce", "send", "recv"])
    assert (verdict.kind, verdict.ranks) == ("unmatched_p2p", [2])
    assert "Rank 2 issued send 2->1 instead of send 2->3 in main (me/train.py:22)" in verdict.sentence


def test_the_rank_that_receives_once_too_often_is_named_and_not_its_partner(folder, recorder):
    calls = [{"send 0->1": 4}, {"recv 1<-0": 4}, {"send 2->3": 4}, {"recv 3<-2": 5}]
    verdict = ranks_in(folder, recorder, calls, ["all_reduce", "all_reduce", "all_reduce", "recv"])
    assert (verdict.kind, verdict.ranks) == ("unmatched_p2p", [3])
    assert "Rank 3 issued recv 3<-2 once too often" in verdict.sentence


def test_the_partner_is_named_where_the_other_pairs_exchanged_as_many(folder, recorder):
    calls = [{"send 0->1": 5}, {"recv 1<-0": 5}, {"send 2->3": 4}, {"recv 3<-2": 5}]
    verdict = ranks_in(folder, recorder, calls, ["all_reduce", "all_reduce", "all_reduce", "recv"])
    assert (verdict.kind, verdict.ranks) == ("unmatched_p2p", [2])


def stacks(folder, functions):
    """Write the stacks of ranks: in `wait()` for the result of isend or irecv, in a function of torch, or their own."""
    recorder = '  File "/x/workbench/recorders/hang/send_recv_counts.py", line {} in {}\n'
    wait = recorder.format(1, "_wait_for_message") + recorder.format(2, "wait")
    for rank, function in enumerate(functions):
        inner = {"wait": wait, "": ""}.get(function, LIBRARY.format(function))
        text = f"Thread 0x1 (most recent call first):\n{inner}{OWN.format(20 + rank)}"
        folder.side(f"stacks_{rank}.txt", text)


def test_the_neighbour_waits_for_the_rank_that_stops_sending_in_a_ring(folder, recorder):
    """With isend and irecv the wait for a message is not in PyTorch's Python code; only the recorders show it."""
    calls = [
        {"send 0->1": 9, "recv 0<-3": 9},
        {"send 1->2": 10, "recv 1<-0": 10},
        {"send 2->3": 11, "recv 2<-1": 11},
        {"send 3->0": 10, "recv 3<-2": 10},
    ]
    ranks_in(folder, recorder, calls, [""] * 4)
    stacks(folder, ["", "wait", "wait", "wait"])
    report = folder.report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [0])
    assert report.data.culprits[0].victims == [1, 2, 3]
    assert "Rank 0 is stuck in main (me/train.py:20)" in report.verdict.sentence
    assert [(wait.rank, wait.waits_for) for wait in report.data.waits] == [(1, [0]), (2, [1, 3]), (3, [0])]


def test_a_rank_in_its_own_code_does_not_wait_for_what_it_has_posted_ahead(folder, recorder):
    calls = [{"send 0->1": 5}, {"recv 1<-0": 6}]
    ranks_in(folder, recorder, calls, ["all_reduce", ""])
    stacks(folder, ["all_reduce", ""])
    assert (folder.report().verdict.kind, folder.report().verdict.ranks) == ("host_stuck", [1])


def test_both_lines_of_two_stages_that_wait_for_each_other_are_named(folder, recorder):
    calls = [{"send 0->1": 19, "recv 0<-1": 5}, {"recv 1<-0": 20, "send 1->0": 4}]
    verdict = ranks_in(folder, recorder, calls, ["recv", "recv"])
    assert (verdict.kind, verdict.ranks) == ("unmatched_p2p", [0, 1])
    assert verdict.sentence == (
        "Ranks 0-1 wait for each other in sends and receives: rank 0 is in recv 0<-1 of process group default_pg"
        " (me/train.py:20), rank 1 is in recv 1<-0 of process group default_pg (me/train.py:21), and no rank has issued"
        " the other halves"
    )


def test_the_rank_that_waits_for_a_message_that_was_never_exchanged_before_is_named(folder, recorder):
    """Rank 0 alone thinks that the borders are periodic, and waits for rank 2, which has gone on."""
    calls = [{"send 0->1": 6, "recv 0<-2": 1}, {"recv 1<-0": 6, "send 1->2": 6}, {"recv 2<-1": 6}]
    verdict = ranks_in(folder, recorder, calls, ["recv", "all_reduce", "all_reduce"])
    assert (verdict.kind, verdict.ranks) == ("unmatched_p2p", [0])
    assert "Rank 0 issued recv 0<-2, whose other half its peer has never issued, in main" in verdict.sentence


def test_at_the_first_message_the_rank_that_sends_none_is_named(folder, recorder):
    calls = [{"recv 0<-2": 1}, {}, {}]
    verdict = ranks_in(folder, recorder, calls, ["recv", "all_reduce", "all_reduce"])
    assert verdict.ranks == [2]
