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
