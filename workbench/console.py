"""The only module that writes to stderr, and the only one that ends the process."""

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from analyzers.errors import CacheWarning, Exit, WorkbenchError

INVISIBLE = "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
"""Characters without width that make a text read as another, such as right-to-left marks: shown by their number."""
UNSAFE: dict[int, str | None] = {
    **{code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"},
    **{ord(sign): f"\\u{ord(sign):04x}" for sign in INVISIBLE},
}


def clean(text: object) -> str:
    """Return text of an artefact without the control characters that could steer a terminal or deceive a reader."""
    return str(text).translate(UNSAFE)


def note(text: str) -> None:
    """Print what is going on to stderr, so that stdout holds nothing but the answer."""
    print(clean(text), file=sys.stderr)


def complain(message: str, hint: str) -> None:
    note(f"error: {message}\nhint: {hint}")


def show_warning(message: Warning | str, category: type[Warning]) -> None:
    """Print a warning of ours as a note; others come from libraries and say nothing to a user."""
    if issubclass(category, CacheWarning) or wants_traceback():
        note(f"note: {message}")


def wants_traceback() -> bool:
    return "--debug" in sys.argv or bool(os.environ.get("WORKBENCH_DEBUG"))


@contextmanager
def guarded() -> Iterator[None]:
    """Turn an error into two lines on stderr, `error:` and `hint:`, and into the exit status of the command."""
    warnings.showwarning = lambda message, category, *_: show_warning(message, category)
    try:
        yield
    except WorkbenchError as error:
        if wants_traceback():
            traceback.print_exc()
        complain(error.message, error.hint)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has closed it, as `head` does. Python would complain when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.OK)
