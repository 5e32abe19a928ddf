"""Try each entry of the catalogue on its own examples, as a log that holds nothing else."""

import re
import time

import pytest

from analyzers.case.facts import LogClass
from analyzers.case.wording import quoted
from analyzers.failures.catalogue import BY_ID, CATALOGUE, known, shown_by
from analyzers.failures.entry import headline, next_steps, sentence, write
from analyzers.logs.report import case_of
from analyzers.report import LONGEST_HEADLINE

EXAMPLES = [(entry, example) for entry in CATALOGUE for example in entry.examples]
MISSES = [(entry, text) for entry in CATALOGUE for text in entry.near_misses]


@pytest.mark.parametrize(("entry", "example"), EXAMPLES, ids=[f"{e.id}-{n}" for n, (e, _) in enumerate(EXAMPLES)])
def test_an_example_shows_its_failure(entry, example):
    case = case_of(example.text)
    if entry.kind is LogClass.HEALTHY:
        assert case is None
        assert shown_by(example.text)[0] is entry
        return
    assert case is not None, "no failure is seen"
    found, case = known(case)
    assert found.id == entry.id
    head, steps = headline(entry, case), next_steps(entry, case)
    assert 20 <= len(head) <= LONGEST_HEADLINE
    assert steps
    said = [head, sentence(entry, case).replace(quoted(case.lead), ""), write(entry.why, case), *steps]
    assert not any(re.search(r"[{}]\w*[}]|\bNone\b|  |\n", text) for text in said), said
    assert all(any(word in text for text in said) for word in example.says), said


@pytest.mark.parametrize(("entry", "text"), MISSES, ids=[f"{e.id}-{n}" for n, (e, _) in enumerate(MISSES)])
def test_a_near_miss_is_not_this_failure(entry, text):
    case = case_of(text)
    assert case is None or known(case)[0].id != entry.id


def test_each_entry_has_a_name_of_its_own_and_what_a_page_needs():
    assert len(BY_ID) == len(CATALOGUE)
    for entry in CATALOGUE:
        assert re.fullmatch(r"[a-z]+\.[a-z0-9_]+", entry.id), entry.id
        assert entry.kind in set(LogClass)
        assert entry.what.endswith("."), entry.id
        assert entry.next, entry.id
        assert all(
            other.removesuffix(".*") in {e.domain for e in CATALOGUE} or other in BY_ID for other in entry.explains
        )


def test_an_entry_that_is_found_by_its_text_has_an_example_and_a_source():
    for entry in CATALOGUE:
        if entry.signs:
            assert entry.examples, entry.id
            assert entry.knowledge, entry.id
            assert all(not re.search(r"\d", one.word) for one in entry.signs), entry.id


@pytest.mark.parametrize("filling", ["a", "1", " ", "/", "a ", "\n", "x=1 ", "[1, "])
def test_no_text_makes_an_expression_slow(filling):
    """A hostile line of 6000 characters takes each expression well below half a second of the processor."""
    for entry in CATALOGUE:
        for one in (*entry.signs, *entry.clues):
            text = (filling * 6000)[:5900]
            before = time.process_time()
            one.expression.search(text[:3000] + one.word + text[3000:])
            assert time.process_time() - before < 0.5, (entry.id, one.word)


@pytest.mark.parametrize(
    ("code", "kind"), [("batch = batch.cuda()", LogClass.OOM), ("batch = batch.pin_memory()", LogClass.HOST_OOM)]
)
def test_a_text_of_two_failures_has_the_class_of_the_one_that_holds(code, kind):
    frame = f'  File "/w/train.py", line 40, in main\n    {code}\n'
    case = case_of(f"Traceback (most recent call last):\n{frame}RuntimeError: CUDA error: out of memory\n")
    assert case is not None
    assert case.kind is kind
    assert known(case)[0].kind is kind
