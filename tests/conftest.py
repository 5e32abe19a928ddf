"""What every test shares: a cache of the tests' own."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Keep what is read once for the whole session, and away from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
