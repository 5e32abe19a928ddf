"""Whether the native readers are in use, in each state in which an installation may be."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from analyzers import native
from analyzers.native import NativeState
from workbench.commands.doctor import diagnosis, problems

SOURCE = Path(native.__file__).read_text()
BESIDE = {
    NativeState.NOT_BUILT: {},
    NativeState.NOT_LOADED: {"_readers.abi3.so": "no library"},
    NativeState.OTHER_VERSION: {"_readers.py": "VERSION = 1"},
    NativeState.USED: {"_readers.py": f"VERSION = {native.VERSION}"},
}


@pytest.mark.parametrize("state", NativeState)
def test_the_state_is_what_lies_beside_the_module(state, tmp_path):
    folder = tmp_path / "native"
    folder.mkdir()
    for name, text in {"__init__.py": SOURCE, **BESIDE[state]}.items():
        (folder / name).write_text(text)
    code = "import native; print(native.native_state(), native.native_module() is not None)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == f"{state} {state is NativeState.USED}\n"


@pytest.mark.parametrize("state", NativeState)
def test_doctor_says_which_readers_are_in_use_and_how_the_fast_ones_come_into_use(state):
    data = msgspec.structs.replace(diagnosis().data, native_readers=state)
    found = [finding for finding in problems(data) if finding.id == "doctor.plain_readers"]
    assert len(found) == (state is not NativeState.USED)
    for finding in found:
        assert "pip install --force-reinstall" in finding.next
