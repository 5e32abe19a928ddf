"""Process groups that a process destroys and creates again under the same name: their numbers begin again."""

import pytest

DEFAULT = ("0", "default_pg")


def job(recorder, *lives, ranks=3):
    """Return dumps of gloo; each of `lives` maps ranks to how many collectives of a group they completed and issued."""
    dumps = {}
    for rank in range(ranks):
        entries = []
        for number, life in enumerate(lives):
            completed, issued = life[rank]
            entries += [
                recorder.entry(DEFAULT, seq, backend="gloo", done=seq <= completed, record=number * 100 + seq)
                for seq in range(1, issued + 1)
            ]
        dumps[rank] = recorder.dump(entries, {})
    return dumps


@pytest.mark.parametrize("before", [5, 3, 90])
def test_the_numbers_of_the_old_group_do_not_count(folder, recorder, before):
    """Rank 2 never issued #4 of the new group; in the old one it had completed as many as all others."""
    old = dict.fromkeys(range(3), (before, before))
    report = folder.write(job(recorder, old, {0: (3, 4), 1: (3, 4), 2: (3, 3)})).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [2])
    assert (report.data.culprits[0].seq, report.data.culprits[0].victims) == (4, [0, 1])


def test_a_rank_that_has_issued_nothing_in_the_new_group_is_not_ahead(folder, recorder):
    old = dict.fromkeys(range(3), (5, 5))
    report = folder.write(job(recorder, old, {0: (0, 1), 1: (0, 1), 2: (0, 0)})).report()
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [2])
    assert report.data.culprits[0].seq == 1


def test_a_group_that_ran_well_twice_is_healthy(folder, recorder):
    lives = [dict.fromkeys(range(3), (5, 5)), dict.fromkeys(range(3), (2, 2))]
    assert folder.write(job(recorder, *lives)).report().verdict.kind == "healthy"
