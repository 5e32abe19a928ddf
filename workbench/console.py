"""The one module that writes to stderr, and the one that ends the process."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from analyzers.errors import Exit, WorkbenchError

TURNING = "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
"""Characters without a width that let text read as another: told by their number."""
UNSAFE: dict[int, str | None] = {
    **{code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"},
    **{ord(sign): f"\\u{ord(sign):04x}" for sign in TURNING},
}


def clean(text: object) -> str:
    """Text out of an artefact, without the control characters that could steer a terminal or a reader's eye."""
    return str(text).translate(UNSAFE)


def note(text: str) -> None:
    """Narration: what is going on, where things lie."""
    print(clean(text), file=sys.stderr)


def complain(message: str, hint: str) -> None:
    note(f"error: {message}\nhint: {hint}")


def wants_traceback() -> bool:
    return "--debug" in sys.argv or bool(os.environ.get("WORKBENCH_DEBUG"))


@contextmanager
def guarded() -> Iterator[None]:
    """Turn what goes wrong into two lines on stderr and the exit status of the contract."""
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
        # The reader of our output has gone, as `head` does; what it did not read is nobody's loss.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.OK)
