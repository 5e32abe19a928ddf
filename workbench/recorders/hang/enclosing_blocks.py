"""Find the `if`, loops and handlers in the source of a job around the lines at which its ranks are.

Ranks that are in different collectives have parted at one of these: at an `if` that only some of them took, or at a
loop that ended earlier on one. Whoever analyses the dumps may not have the source, so the collector writes it down.
This module uses only the standard library, because it runs in the collector, a process outside of the ranks.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from workbench.recorders.files import read_json, read_regular

Blocks = dict[str, dict[str, list[tuple[int, str]]]]
"""{source file: {line: [(line, text) of the header of each block around it, innermost first]}}."""
_FRAME = re.compile(r'File "([^"\n]+\.py)", line (\d+)')
_LIBRARY = re.compile(
    r"[/\\](?:site-packages|dist-packages|lib[/\\]python[\d.]+|torch)[/\\]|[/\\]workbench[/\\]recorders[/\\]"
)
_BRANCH = re.compile(r"(?:if|elif|else|for|while|async for|except|finally|match|case)\b")
_FUNCTION = re.compile(r"(?:async )?def |class |@")
_SOURCE_BYTES, _STACK_BYTES = 1 << 20, 1 << 20
_MOST_FILES, _MOST_LINES, _MOST_BLOCKS, _TEXT_LENGTH = 32, 256, 8, 120


def enclosing_blocks(folder: Path, dumps: Path) -> Blocks:
    """Return the blocks around the lines of the user's code in the stacks and exceptions of ranks.

    `folder` has the stacks of one set of dumps; `dumps` has what ranks wrote when they ended.
    """
    lines: dict[str, set[int]] = {}
    for number, (name, line) in enumerate(_lines_of_ranks(folder, dumps)):
        if number == _MOST_LINES:
            break
        if name in lines or len(lines) < _MOST_FILES:
            lines.setdefault(name, set()).add(line)
    found = {name: _blocks_around(_read_source(Path(name)), numbers) for name, numbers in lines.items()}
    return {name: blocks for name, blocks in found.items() if blocks}


def _lines_of_ranks(folder: Path, dumps: Path) -> Iterator[tuple[str, int]]:
    """Yield each (source file, line) of the user's code once."""
    texts = [_read_text(path) for path in (*folder.glob("stacks_*.txt"), *dumps.glob("crash_*.txt"))]
    frames = [(match[1], int(match[2])) for text in texts for match in _FRAME.finditer(text)]
    for path in dumps.glob("exit_*.json"):
        content = read_json(path)
        trace = content.get("traceback") if isinstance(content, dict) else None
        frames += [(str(f.get("filename")), int(f.get("line", 0))) for f in trace or [] if isinstance(f, dict)]
    yield from dict.fromkeys((name, line) for name, line in frames if not _LIBRARY.search(name))


def _read_text(path: Path) -> str:
    try:
        return read_regular(path)[:_STACK_BYTES].decode(errors="replace")
    except OSError:
        return ""


def _read_source(path: Path) -> list[str]:
    """Return the lines of a source file; empty if it is no regular file, is too large, or cannot be read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _SOURCE_BYTES or not os.access(path, os.R_OK):
            return []
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _blocks_around(source: list[str], numbers: Iterable[int]) -> dict[str, list[tuple[int, str]]]:
    """Return {line: blocks around it in its function} for the lines of a file; a line may have none."""
    return {str(number): _headers_above(source, number) for number in sorted(numbers) if 0 < number <= len(source)}


def _headers_above(source: list[str], number: int) -> list[tuple[int, str]]:
    """Return (line, text) of the header of each block of its function that a line is in, innermost first.

    Only indents are compared, so that nothing is parsed or run. For an `else`, the text names its `if` or loop as well.
    """
    headers: list[tuple[int, str]] = []
    indent = _indent(source[number - 1])
    for above in range(number - 1, 0, -1):
        line = source[above - 1]
        text = line.strip()
        if not text or text.startswith("#") or _indent(line) >= indent:
            continue
        indent = _indent(line)
        if _FUNCTION.match(text):
            break
        if _BRANCH.match(text):
            whole = f"{text} (of {of})" if text.startswith("else") and (of := _head_of(source, above)) else text
            headers.append((above, whole[:_TEXT_LENGTH]))
    return headers[:_MOST_BLOCKS]


def _head_of(source: list[str], number: int) -> str:
    """Return the header of the statement to which the `else` in a line belongs; empty if there is none."""
    indent = _indent(source[number - 1])
    for above in range(number - 1, 0, -1):
        line = source[above - 1]
        if line.strip() and _indent(line) <= indent:
            same = _indent(line) == indent and _BRANCH.match(line.strip())
            return line.strip() if same else ""
    return ""


def _indent(line: str) -> int:
    return len(line.expandtabs()) - len(line.expandtabs().lstrip())
