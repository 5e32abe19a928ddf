"""Name the line of the user's script that runs, or that failed."""

import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
LIBRARY_FOLDERS = tuple(
    f"{folder}/"
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(str(PACKAGE_ROOT / name) for name in ("trainer", "workbench", "analyzers")),
    }
)
"""The folders of Python's library, of installed packages and of our own."""


def is_user_file(path: str) -> bool:
    """Return whether a source file is the user's own: no library and no code that was made at run time."""
    return not path.startswith(("<", *LIBRARY_FOLDERS)) and "/site-packages/" not in path


def shown(path: str, line: int) -> str:
    """Return a source line as text: `train.py:41`, relative to the working folder where it is below it."""
    file = Path(path)
    try:
        return f"{file.resolve().relative_to(Path.cwd())}:{line}"
    except (ValueError, OSError):
        return f"{file}:{line}"


def running_line() -> str:
    """Return the innermost line of the user's code on the stack of this thread; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def failed_line(error: BaseException) -> str:
    """Return the innermost line of the user's code at which an error was raised; empty if there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_user_file(frame.filename)]
    return shown(own[-1].filename, own[-1].lineno or 0) if own else ""
