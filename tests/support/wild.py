"""Find files that other people's jobs recorded, on machines that have them."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("WORKBENCH_SHARED", Path(__file__).parents[3] / "shared"))
DATA = SHARED / "data"


def recorded(room):
    """Return the folder with files for an analyzer; skip the test if there is none."""
    folder = DATA / room
    if not folder.is_dir():
        pytest.skip("no recordings of other people's jobs here")
    return folder
