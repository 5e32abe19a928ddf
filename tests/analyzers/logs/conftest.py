"""A fixture that writes the log cases to files."""

from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def log_of(tmp_path):
    """Fixture: a function that writes a case to files, and returns the path of its log or log folder."""

    def path(case):
        if case.text:
            file = tmp_path / f"{case.name}.log"
            file.write_text(case.text)
            return file
        folder = RECORDED / case.name
        return folder if folder.is_dir() else RECORDED / f"{case.name}.log"

    return path
