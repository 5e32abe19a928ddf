"""Fixtures that all tests share."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Fixture: a cache for the whole test session, separate from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def script():
    """Fixture: `script(path)` imports a benchmark as a module; tests run a small part of what it does."""
    loaded = {}

    def load(path):
        name = Path(path).name
        if name not in loaded:
            spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{path}.py")
            # Before it runs: data classes look their module up.
            loaded[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(loaded[name])
        return loaded[name]

    return load
