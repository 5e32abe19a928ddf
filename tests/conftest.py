"""Define the fixtures that all tests share, and the order in which test files start."""

import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
BENCHMARKS = TESTS.parent / "benchmarks"
LONGEST = (
    "workbench/web",
    "test_fuzz.py",
    "workbench/tui",
    "trainer",
    "workbench/commands",
    "workbench",
    "analyzers/steps/test_compare.py",
)
"""The tests that take longest, in the order in which they start.

A long file that starts last would keep one core busy while the others have nothing to do.
"""

OF_THE_SHELL = re.compile(
    r"((LOCAL|GROUP|ROLE|NODE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|ROLE_NAME|(SLURM(?!_CONF)|PMIX?|OMPI)_\w+"
    r"|(TORCH|TORCHELASTIC|TORCHINDUCTOR|PYTORCH|NCCL|GLOO|KINETO|TEXTUAL|WANDB)_\w+|WORKBENCH_(?!NATIVE|UPDATE)\w+"
    r"|NGPU|CONFIG_FILE|MODULE|CONFIG|COMM_MODE|LOG_RANK|TRAIN_FILE|(NO|FORCE)_COLOR|COLUMNS|LINES"
)
"""Variables with which a shell, a launcher or a scheduler changes what programs do: tests set those that they mean."""
for variable in filter(OF_THE_SHELL.fullmatch, list(os.environ)):
    del os.environ[variable]


def pytest_collection_modifyitems(items):
    """Move the tests that take longest to the front; the order of the others, and that within a file, stays."""
    items.sort(key=place_in_line)


def place_in_line(item):
    """Return the index in `LONGEST` of the entry that a test belongs to; a test in no entry comes last."""
    parts = (number for number, part in enumerate(LONGEST) if item.path.is_relative_to(TESTS / part))
    return next(parts, len(LONGEST))


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
