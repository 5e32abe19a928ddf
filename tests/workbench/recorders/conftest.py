"""Shared by the tests of the recorders."""

from collections.abc import Iterator

import pytest
from surroundings import Surroundings


@pytest.fixture(scope="module")
def surroundings() -> Iterator[Surroundings]:
    """Fixture: runs rows; the processes that have imported torch are shared by all rows of a module."""
    made = Surroundings()
    yield made
    made.close()
