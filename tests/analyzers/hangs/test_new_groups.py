"""Ranks that do not create a process group, so that PyTorch numbers their later groups differently from the others'."""

import json

import pytest

from analyzers import run
from analyzers.hangs.reading.side_files import read_side_files

DEFAULT, FIRST = ("0", "default_pg"), ("1", "undefined")
C10D = "/x/site-packages/torch/distributed/distributed_c10d.py"
IN_NEW_GROUP = f"""Thread 0x1 (most recent call first):
  File "{C10D}", line 5863 in new_group
  File "/home/me/train.py", line 7 in make_groups
  File "/home/me/train.py", line 9 in <module>
"""
STEP_LOG = '{"schema": "workbench.steps/1", "rank": 0, "world_size": 1, "started_ns": 1}\n'


def made(folder, rank, *groups, line=7):
    """Write the record of the groups that a rank created; `groups` has the members of group #1, #2 and so on."""
    lines = [
        {
            "name": str(number),
            "ranks": members,
            "time_ns": number,
            "frames": [
                {"name": "new_group", "filename": C10D, "line": 5863},
                {"name": "make_groups", "filename": "/home/me/train.py", "line": line},
            ],
        }
        for number, members in enumerate(groups, 1)
    ]
    folder.side(f"new_groups_{rank}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def waiting(folder, recorder, ranks=3, in_group=(0,)):
    """Write dumps in which the ranks `in_group` wait in group #1, and the others while they create a group."""
    done = recorder.entry(DEFAULT, 1, backend="gloo")
    front = recorder.entry(FIRST, 1, record=2, backend="gloo", done=False)
    for rank in range(ranks):
        groups = {"0": {"desc": "default_pg", "ranks": list(range(ranks))}}
        if rank in in_group:
            groups["1"] = {"desc": "undefined", "ranks": [0, 1]}
        else:
            folder.side(f"stacks_{rank}.txt", IN_NEW_GROUP)
        content = {"schema": "workbench.groups/1", "rank": rank, "world_size": ranks, "pid": 1, "groups": groups}
        folder.side(f"groups_{rank}.json", content)
        folder.write({rank: recorder.dump([done, front] if rank in in_group else [done], {})})


def test_the_rank_that_left_out_a_group_is_named_with_both_lines(folder, recorder):
    waiting(folder, recorder)
    made(folder, 0, [0, 1], [1, 2])
    made(folder, 1, [0, 1], [1, 2])
    made(folder, 2, [1, 2], line=8)
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("skipped", [2])
    assert "train.py:7" in verdict.sentence
    assert "train.py:8" in verdict.sentence


def test_of_two_ranks_that_whose_group_the_other_made_later_is_wrong(folder, recorder):
    waiting(folder, recorder, ranks=2)
    made(folder, 0, [0], [0, 1])
    made(folder, 1, [0, 1])
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("skipped", [1])


def test_a_member_that_never_came_to_make_a_group(folder, recorder):
    waiting(folder, recorder, in_group=())
    (folder.path / "stacks_2.txt").write_text(IN_NEW_GROUP.replace("new_group", "read").replace(C10D, "/home/me/x.py"))
    made(folder, 0, [0, 1, 2])
    made(folder, 1, [0, 1, 2])
    made(folder, 2)
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("host_stuck", [2])


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\n", b'{"name": "x", "ranks": []}\n', b'{"name": "1"}\n' * 9])
def test_damaged_files_blame_nobody(folder, recorder, damage):
    waiting(folder, recorder)
    made(folder, 0, [0, 1])
    made(folder, 1, [0, 1])
    (folder.path / "new_groups_1.jsonl").write_bytes(damage)
    assert folder.report().verdict.kind not in ("mismatch", "skipped")


def test_groups_that_differ_are_no_cause_where_a_rank_failed(folder, recorder):
    waiting(folder, recorder)
    made(folder, 0, [0, 1])
    made(folder, 2, [1, 2])
    folder.side("exit_1.json", {"rank": 1, "error": "ValueError", "message": "no tokens", "time_ns": 1})
    verdict = folder.report().verdict
    assert (verdict.kind, verdict.ranks) == ("dead", [1])


def test_files_beside_the_dumps_win_over_those_elsewhere(folder, tmp_path):
    """An older run that was copied into the same folder has logs of the same ranks."""
    for home in (folder.path, tmp_path / "old" / "dumps"):
        type(folder)(home).side("new_groups_0.jsonl", "").side("rank_0.jsonl", STEP_LOG)
    side = read_side_files(run.discover(tmp_path), [folder.path])
    assert side.new_group_files == {0: folder.path / "new_groups_0.jsonl"}
    assert side.step_logs == {0: folder.path / "rank_0.jsonl"}
