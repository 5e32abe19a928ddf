"""Find the line of the user's script that is running, or that failed."""

import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

PACKAGE_ROOT = Path(__file__).resolve().parents[3]
_LIBRARY_FOLDERS = tuple(
    f"{folder}/"
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(str(PACKAGE_ROOT / name) for name in ("trainer", "workbench", "analyzers")),
    }
)
"""The folders of Python's library, of installed packages and of this project's packages."""


def _is_user_file(path: str) -> bool:
    """Return whether a source file belongs to the user: not to a library, and not generated at run time."""
    return not path.startswith(("<", *_LIBRARY_FOLDERS)) and "/site-packages/" not in path


def shown(path: str, line: int) -> str:
    """Return a source line as text, such as `train.py:41`; paths below the working folder are relative to it."""
    file = Path(path)
    try:
        return f"{file.resolve().relative_to(Path.cwd())}:{line}"
    # The file is elsewhere, or the working folder has been deleted.
    except (ValueError, OSError):
        return f"{file}:{line}"


def running_line() -> str:
    """Return the innermost line of the user's code on the stack of this thread; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if _is_user_file(frame.f_code.co_filename):
            return shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def failed_line(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback of an error; empty if there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_file(frame.filename)]
    return shown(own[-1].filename, own[-1].lineno or 0) if own else ""
