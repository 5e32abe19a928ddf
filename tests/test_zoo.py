"""Each script of the zoo has labels, of a known collection, and a name of its own: run folders are named after it."""

from collections import Counter

from benchmarks.zoo.cases import PARTS, UNSEEN, cases


def test_each_script_has_its_labels():
    zoo = list(cases())
    parts = Counter(case.part for case in zoo)
    assert parts.keys() <= set(PARTS)
    assert parts.keys() >= UNSEEN
    assert all(case.classes and case.ranks > 1 for case in zoo)
    assert len({case.name for case in zoo}) == len(zoo) > 300


def test_a_script_without_recorders_keeps_its_line_numbers():
    for case in cases():
        bare = case.text(recorded=False)
        assert "workbench" not in bare, case.script
        assert bare.count("\n") == case.text(recorded=True).count("\n")
