"""The documents of the recorded runs keep their ids, classes, ranks and numbers when the wording changes."""

import pytest

from documents import documents, kept, recorded

KEPT = kept()


@pytest.mark.parametrize("folder", recorded(), ids=lambda folder: folder.name)
def test_the_documents_of_a_recorded_run_are_unchanged(folder):
    now = dict(documents(folder))
    assert set(now) == {name for name in KEPT if name.startswith(f"{folder.name}/")}
    for name, document in now.items():
        assert document == KEPT[name], name
