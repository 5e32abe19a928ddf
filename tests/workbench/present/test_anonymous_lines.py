"""Lines as real logs have them: what identifies people, machines or accounts goes, everything else stays."""

import hashlib
import re
from pathlib import Path

import pytest

from workbench.present.anonymous import Anonymiser

LINES = Path(__file__).with_name("anonymous_lines.txt").read_text(encoding="utf-8")
SENSITIVE, UNCHANGED = (
    [line for line in part.splitlines() if line and not line.startswith("# ")] for part in LINES.split("# unchanged\n")
)
MARKED = re.compile("⟦(.*?)⟧")


def is_held_out(line):
    """Return whether a line is in the third, chosen by its hash, that was measured only after the rules were made."""
    return hashlib.sha256(line.encode()).digest()[0] % 3 == 0


def remaining(line):
    """Return the marked pieces of a line that its anonymised form still has."""
    plain = MARKED.sub(r"\1", line)
    told = Anonymiser([], [plain])(plain)
    return [piece for piece in MARKED.findall(line) if re.search(rf"(?<!\w){re.escape(piece)}(?!\w)", told)]


@pytest.mark.parametrize("line", SENSITIVE, ids=lambda line: MARKED.sub(r"\1", line)[:40])
def test_what_identifies_is_gone(line):
    assert remaining(line) == []


@pytest.mark.parametrize("line", UNCHANGED, ids=lambda line: line[:40])
def test_what_identifies_nobody_stays(line):
    assert Anonymiser([], [line])(line) == line
