"""Each entry on hangs can be shown, says all that is asked of it, and has a page."""

import pytest

from analyzers.hangs.findings.catalogue import CATALOGUE, detail, entry_of, next_step, title, why
from analyzers.hangs.findings.examples import example


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_an_entry_is_the_first_that_its_example_shows(entry):
    cause = example(entry)
    assert cause is not None
    assert entry_of(cause) is entry
    for text in (title(cause), why(cause), next_step(cause)):
        assert text
        assert not any(part in text for part in ("{", "None", "  "))
    assert "{" not in detail(cause)
    assert entry.what.endswith(".")


def test_each_id_is_used_once():
    ids = [entry.id for entry in CATALOGUE]
    assert len(ids) == len(set(ids))
