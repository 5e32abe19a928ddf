"""Names of files that are no UTF-8, or that would steer a terminal: every command answers, and shows them by codes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers.rooms import ask, room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.command_options.options import Format
from workbench.present import render

FIXTURES = Path(__file__).parents[1] / "fixtures"
ODD = b"a\nb\tc\xff\x1b[31mx\x1b]0;t\x07\xe2\x80\xaed"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")
COMMANDS = ("inspect @", "inspect @ --json", "hang @/dumps --json", "steps @ --format markdown", "report @ -o @/o.html")
COMMANDS += ("report @ -o @/o.json --anonymise", "trace @", "config explain @", "tokens @ --json", "compare @ @ --json")


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Fixture: a run in a folder with an odd name, in which the names of a log and a snapshot are odd, too."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path_factory.mktemp("odd")) + b"/" + ODD))
    shutil.copytree(FIXTURES / "oom_2ranks", folder)
    inner = os.fsdecode(ODD)
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / f"rank_{inner}.log").write_text("RuntimeError: bad\n")
    snapshot = next(path for path in folder.glob("memory_snapshot/*/*") if path.is_file())
    shutil.copy(snapshot, snapshot.with_name(f"{inner}.pickle"))
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_answer_or_refuse(odd, command):
    words = [word.replace("@", str(odd)) for word in command.split(" ")]
    if "-o" in words and "--force" not in words:
        words.append("--force")
    ended = subprocess.run(
        [sys.executable, "-m", "workbench", *words], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    assert ended.returncode in (0, 2, 3), ended.stderr.decode()
    assert not STEERS.search(ended.stderr.decode().replace("\r", ""))
    if "--json" in words and ended.stdout:
        json.loads(ended.stdout)
    else:
        assert not STEERS.search(ended.stdout.decode())


@pytest.mark.parametrize("form", list(Format))
def test_documents_can_be_encoded(odd, form):
    run = discover(odd)
    document = render(ask(room_for(run), run, Options(cache=False)), form, run).encode("utf-8", "backslashreplace")
    if form is Format.JSON:
        json.loads(document)
    else:
        assert not STEERS.search(document.decode())
