"""The evidence on a stuck rank shows that it did not join, and when and where it last made progress."""

from pathlib import Path

import pytest

from analyzers import hangs, run
from analyzers.hangs.findings.wording import part_of_step
from tests.analyzers.hangs.test_last_word import one_is_missing

FIXTURES = Path(__file__).parents[2] / "fixtures"


def stuck_facts(name):
    """Return the texts of the evidence on the stuck rank of a recorded run."""
    report = hangs.analyze(run.discover(FIXTURES / name))
    [finding] = [finding for finding in report.findings if finding.id == "hang.host_stuck"]
    return [fact.text for fact in finding.evidence]


@pytest.mark.parametrize(("name", "rank"), [("stuck_2ranks", 1), ("stuck_gil_4ranks", 3)])
def test_a_stuck_rank_is_shown_not_to_have_joined(name, rank):
    facts = stuck_facts(name)
    issued = "the last collective that it issued in process group default_pg is all_reduce #88 (completed)"
    assert f"Flight Recorder of rank {rank}: {issued}; #89 is not in it" in facts
    assert any("in all_gather #89 of process group default_pg" in fact for fact in facts)


def test_the_last_sign_of_progress_says_how_old_it_is_and_where():
    progress = "rank 3 last reported progress 7.45 s before it wrote its dump, in the part 'fwd' of step 6"
    assert any(fact.startswith(progress) for fact in stuck_facts("stuck_gil_4ranks"))


@pytest.mark.parametrize(
    ("phase", "step", "text"),
    [
        ("bwd", 6, ", in the part 'bwd' of step 6"),
        ("step", 6, ", in step 6"),
        ("running", 0, ""),
        ("bwd", None, ""),
    ],
)
def test_a_heartbeat_names_the_part_of_a_step(phase, step, text):
    assert part_of_step(phase, step) == text


LIBRARY, OWN = '  File "/lib/python3.11/{}", line 9 in {}\n', '  File "/home/me/train.py", line 36 in main\n'
BOOTSTRAP = LIBRARY.format("multiprocessing/process.py", "_bootstrap")
HOLDER = f'  File "/home/me/cache.py", line 27 in refresh\n{BOOTSTRAP}'
IDLE = LIBRARY.format("multiprocessing/connection.py", "_recv") + BOOTSTRAP
POOL = "".join(
    LIBRARY.format(*frame)
    for frame in [("threading.py", "wait"), ("multiprocessing/pool.py", "get"), ("multiprocessing/pool.py", "map")]
)


@pytest.mark.parametrize(
    ("calls", "child", "told"),
    [
        (
            LIBRARY.format("multiprocessing/synchronize.py", "__enter__"),
            HOLDER,
            "Find out why child process 7 does not return from refresh (me/cache.py:27): main (me/train.py:36) waits",
        ),
        ("", HOLDER, "what the call on this line waits for (its child process 7 is in refresh (me/cache.py:27))"),
        (
            POOL,
            IDLE,
            "Find out what the workers of the pool do for which main (me/train.py:36) waits. Where all of them",
        ),
        (POOL, HOLDER, "Find out why child process 7 does not return from refresh (me/cache.py:27)"),
        (LIBRARY.format("threading.py", "wait"), HOLDER, "Find the thread that should release the lock"),
    ],
)
def test_the_child_for_which_a_stuck_rank_waits_reaches_the_next_step(folder, recorder, calls, child, told):
    one_is_missing(folder, recorder)
    folder.side("stacks_0.txt", f"Thread 0x1 (most recent call first):\n{calls}{OWN}")
    folder.side("children_0.txt", f"Process 7: python train.py\nThread 0x1 (most recent call first):\n{child}")
    assert told in folder.report().findings[0].next
