"""`workbench explain` knows each id that an answer about numbers prints."""

import re

import pytest
from finding_ids import finding_ids

from workbench.present.failure_page import FINDINGS, page

_OF_READING = {"memory.unreadable", "steps.unreadable", "trace.unreadable"}
"""Ids of files that could not be read, whose finding is the error itself."""
_NOTES = {"steps.gantt", "steps.numbered_by_epoch", "steps.numbered_by_line"}
"""Ids of notes on how a log was read, which say all of it."""


def test_each_finding_on_numbers_is_explained():
    printed = {one for one in finding_ids() if one.startswith(("memory.", "steps.", "trace."))}
    explained = [entry.id for entry in FINDINGS]
    assert len(explained) == len(set(explained))
    assert printed - _OF_READING - _NOTES == set(explained)


@pytest.mark.parametrize("entry", FINDINGS, ids=lambda entry: entry.id)
def test_its_page_says_what_it_is_how_it_is_detected_and_what_to_do(entry):
    text = page(entry)
    assert text.startswith(f"# {entry.id}\n")
    assert "**How it is detected.**" in text
    assert "**What to do.**" in text
    assert not re.search(r"(?<!\.)\.\.(?!\.)", text)
