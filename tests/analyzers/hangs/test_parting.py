"""The `if` or loop at which ranks parted is named with the usual cure, where the recorders wrote the source down."""

import json

import pytest

from analyzers.hangs.classify.blocks import Block
from tests.analyzers.hangs.test_last_word import GROUP, SECOND, side_files

FILE = "/home/me/train.py"
LOOP = (4, "for batch in loader:")


def report_of(folder, recorder, lines, blocks):
    """Return the report on ranks at these lines of the source; rank 0 is in a barrier, all others in all_reduce."""
    side_files(folder, len(lines))
    for rank, line in enumerate(lines):
        last = recorder.entry(GROUP, 2, op="all_reduce" if rank else "barrier", backend="gloo", done=False, line=line)
        folder.write({rank: recorder.dump([recorder.entry(GROUP, 1, backend="gloo"), last], {})})
        torch = '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 9 in barrier\n'
        own = f'  File "{FILE}", line {line} in main\n'
        folder.side(f"stacks_{rank}.txt", f"Thread 0x1 (most recent call first):\n{torch}{own}")
    answer = {"status": "ok", "asked_ns": recorder.start_ns + 9 * SECOND, "answered_ns": recorder.start_ns + 9 * SECOND}
    rounds = [{"round": 1, "ranks": {str(rank): answer for rank in range(len(lines))}}]
    content = {"reason": "stalled", "rounds": rounds, "blocks": {FILE: blocks}}
    return folder.side("collection.json", content).report()


@pytest.mark.parametrize(
    ("mine", "theirs", "why", "told"),
    [
        (
            [(8, "if rank == 0:"), LOOP],
            [LOOP],
            "Rank 0 is in `if rank == 0` (me/train.py:8), ranks 1-2 are not",
            "Move the collective at me/train.py:9 out of `if rank == 0` (me/train.py:8): every rank of the group must",
        ),
        (
            [],
            [LOOP],
            "Ranks 1-2 are in `for batch in loader` (me/train.py:4), rank 0 is not",
            "Give every rank as many rounds of `for batch in loader` (me/train.py:4): drop_last=True and a Distributed",
        ),
        (
            [(8, "for name in sorted(metrics):")],
            [],
            "Rank 0 is in `for name in sorted(metrics)` (me/train.py:8)",
            "Let `for name in sorted(metrics)` (me/train.py:8) go through the same names in the same order on every",
        ),
        ([(8, "except RuntimeError:")], [], "Rank 0 is in `except RuntimeError`", "Let all ranks do the same after an"),
        (
            [(8, "if batch is None:"), LOOP],
            [LOOP],
            "`if batch is None`",
            "Let `if batch is None` (me/train.py:8) decide",
        ),
        ([], [(4, "for _ in range(4):")], "`for _ in range(4)`", "Find the `if`, `continue` or `break` in `for _ in"),
    ],
)
def test_the_block_at_which_ranks_parted_is_named_with_its_cure(folder, recorder, mine, theirs, why, told):
    report = report_of(folder, recorder, [9, 5, 5], {"9": mine, "5": theirs})
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [0])
    finding = report.findings[0]
    assert why in finding.why
    assert finding.next.startswith(told)


@pytest.mark.parametrize("blocks", [{}, {"9": [(8, "if rank == 0:")]}, {"9": [LOOP], "5": [LOOP]}])
def test_no_block_is_named_where_the_source_of_a_side_is_not_known_or_both_are_in_it(folder, recorder, blocks):
    finding = report_of(folder, recorder, [9, 5, 5], blocks).findings[0]
    assert "`" not in finding.why
    assert finding.next == "Compare me/train.py:5 with me/train.py:9, and make every rank take the same branch."


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("if dist.get_rank() == 0 and step % 10 == 0:", "rank"),
        ("if accelerator.is_main_process:", "rank"),
        ("else: (of if rank == 0:)", "rank"),
        ("if loss.isnan():", "branch"),
        ("while not done:", "loop"),
        ("for step, batch in enumerate(train_loader):", "batches"),
        ("for name, value in stats.items():", "names"),
        ("for step in range(1, 10):", "counted"),
        ("for step in range(steps):", "batches"),
        ("except (RuntimeError, ValueError) as error:", "handler"),
    ],
)
def test_what_decides_over_a_block_is_seen_in_its_header(header, kind):
    assert Block(FILE, 1, header).kind == kind


def test_what_is_written_by_the_recorders_is_read(tmp_path):
    from workbench.recorders.hang.enclosing_blocks import enclosing_blocks

    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    stack = "".join(f'  File "{script}", line {line} in main\n' for line in (5, 9, 11, 14, 19))
    (tmp_path / "stacks_0.txt").write_text(f'  File "/x/site-packages/torch/y.py", line 3 in z\n{stack}')
    trace = {"traceback": [{"filename": str(script), "line": 21, "name": "main"}]}
    (tmp_path / "exit_1.json").write_text(json.dumps(trace))
    assert enclosing_blocks(tmp_path, tmp_path) == {
        str(script): {
            "5": [(3, "for batch in loader:")],
            "9": [(7, "if rank == 0:"), (3, "for batch in loader:")],
            "11": [(10, "else: (of if rank == 0:)"), (3, "for batch in loader:")],
            "14": [],
            "19": [(18, "while True:"), (17, 'if __name__ == "__main__":')],
            "21": [],
        }
    }


SOURCE = """\
def main():
    # training
    for batch in loader:
        loss = model(
            batch,
        )
        if rank == 0:
            with timer:
                save()
        else:
            wait()

    if rank == 1: print()
    barrier()


if __name__ == "__main__":
    while True:
        main()

main()
"""


def test_the_traceback_of_a_rank_that_failed_counts_and_not_the_stack_of_its_report(folder, recorder):
    """Rank 1 was asked for its stack while it reported that it had lost rank 0."""
    report_of(folder, recorder, [9, 30, 5], {"9": [(8, "if rank == 0:"), LOOP], "5": [LOOP], "30": []})
    frames = [{"name": "main", "filename": FILE, "line": 5}]
    lost = {
        "rank": 1,
        "pid": 101,
        "error": "RuntimeError",
        "message": "[/gloo/tcp/pair.cc:1] Connection closed by peer",
    }
    folder.side("exit_1.json", lost | {"traceback": frames, "time_ns": recorder.start_ns + 20 * SECOND})
    assert "Rank 0 is in `if rank == 0` (me/train.py:8)" in folder.report().findings[0].why


def test_outer_functions_that_only_one_stack_shows_part_nobody(folder, recorder):
    """The traceback of rank 1 begins in main; the stack of rank 0 also has the launcher that called it."""
    blocks = {"9": [(8, "if rank == 0:"), LOOP], "5": [LOOP], "30": [], "77": [(70, "if spawn:")]}
    report_of(folder, recorder, [9, 30, 30], blocks)
    stack = (folder.path / "stacks_0.txt").read_text()
    folder.side("stacks_0.txt", stack + f'  File "{FILE}", line 77 in launch\n')
    for rank in (1, 2):
        frames = [{"name": "main", "filename": FILE, "line": 5}]
        lost = {"rank": rank, "pid": 100 + rank, "error": "RuntimeError", "message": "[/gloo/tcp/pair.cc:1] timed out"}
        folder.side(f"exit_{rank}.json", lost | {"traceback": frames, "time_ns": recorder.start_ns + 20 * SECOND})
    assert "Rank 0 is in `if rank == 0` (me/train.py:8)" in folder.report().findings[0].why
