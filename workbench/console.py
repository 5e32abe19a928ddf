"""Print messages to stderr and end the process with an exit status; no other module does either."""

import codecs
import contextlib
import errno
import io
import os
import resource
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from analyzers.errors import CacheWarning, Exit, WorkbenchError

SIGNS: Mapping[str, str] = {
    **dict(zip("✗✓▲●·→←↑↓\u00d7≥≤±µ—━─│█▌•", "xv!o-><^vx><~u---|##-", strict=True)),
    "…": "...",
}
"""{character: text to print in its place}, for characters that an encoding lacks.

None of these texts has a quotation mark, which would end a text in JSON.
"""
_HANDLER = "workbench.signs"


def substitute(error: UnicodeError) -> tuple[str, int]:
    """Handle an encoding error (a callback of `codecs`): return (the text to print, the position to continue at).

    The text replaces the characters that the encoding lacks, each by a similar sign or by an escape as in JSON.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(SIGNS.get(character) or escape(character) for character in text), error.end


def escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _prepare_streams() -> None:
    """Make every text printable on stdout and stderr, and reserve the file descriptors of closed standard streams.

    Otherwise a file that is opened later could get such a descriptor, and output for stdout would be written to it.
    """
    codecs.register_error(_HANDLER, substitute)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if not _is_open(number):
            # Takes the lowest free number, which is this one. An answer that is written to a closed stdout must fail.
            os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_RDWR)
        if getattr(sys, name) is None:
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    for printed in (sys.stdout, sys.stderr):
        if isinstance(printed, io.TextIOWrapper):
            printed.reconfigure(errors=_HANDLER)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _flush_stdout() -> None:
    """Flush stdout.

    Raises:
        OSError: The disk is full, or the reading end of a pipe is closed.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def _settle_stdout() -> None:
    """Flush stdout; if this fails, discard the text that could not be written.

    Otherwise Python would print an error at exit.
    """
    try:
        _flush_stdout()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            _flush_stdout()


INVISIBLE = "\u061c\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
"""Characters without width, such as right-to-left marks, that can make a text look like a different one.

They are shown by their code, such as \\u200f.
"""
_UNSAFE: dict[int, str | None] = {
    **{code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"},
    **{ord(sign): f"\\u{ord(sign):04x}" for sign in INVISIBLE},
    # Half a surrogate pair stands for a byte of a file's name that is no UTF-8; no face can encode it.
    **{code: f"\\u{code:04x}" for code in range(0xD800, 0xE000)},
}


def clean(text: object) -> str:
    """Return text from an input file without control characters; these could change the terminal or mislead readers."""
    return str(text).translate(_UNSAFE)


def note(text: str) -> None:
    # The answer counts, even where nobody can be told what else goes on.
    with suppress(OSError, ValueError):
        print(clean(text), file=sys.stderr, flush=True)


def rewrite_line(text: str) -> None:
    with suppress(OSError, ValueError):
        print(f"\r\x1b[K{clean(text)}", end="", file=sys.stderr, flush=True)


def complain(message: str, hint: str) -> None:
    note(f"error: {message}\nhint: {hint}")


def _show_warning(message: Warning | str, category: type[Warning]) -> None:
    if issubclass(category, CacheWarning) or _wants_traceback():
        note(f"note: {message}")


def _wants_traceback() -> bool:
    return "--debug" in sys.argv or bool(os.environ.get("WORKBENCH_DEBUG"))


@contextmanager
def guarded() -> Iterator[None]:
    """Turn an exception inside this context into an `error:` and a `hint:` line on stderr, and an exit status.

    A bug in this project ends with status 70, so that a script can distinguish it from a finding.
    """
    _prepare_streams()
    warnings.showwarning = lambda message, category, *_: _show_warning(message, category)
    try:
        try:
            _heed_limits()
            yield
        except SystemExit as ended:
            # Typer ends the process itself where the reader of stdout has gone.
            if isinstance(ended.__context__, BrokenPipeError):
                raise ended.__context__ from None
            _flush_stdout()
            raise
        _flush_stdout()
    except BrokenPipeError:
        # `head` has read enough.
        _settle_stdout()
        sys.exit(Exit.OK)
    except KeyboardInterrupt:
        note("interrupted")
        sys.exit(Exit.INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # the last resort
        _settle_stdout()
        sys.exit(explain(error))


def _heed_limits() -> None:
    """Limit NumPy to one thread if the memory limits of this process do not allow more threads.

    Otherwise NumPy's BLAS library would abort the process.

    Raises:
        MemoryError: The address space is too small even for one thread.
    """
    space, processes = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_NPROC))
    if 0 <= space < _LEAST_SPACE:
        raise MemoryError
    if 0 <= space < _ENOUGH_SPACE or 0 <= processes < _ENOUGH_PROCESSES:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


_LEAST_SPACE, _ENOUGH_SPACE, _ENOUGH_PROCESSES = 144 << 20, 8 << 30, 4096
"""The limits of a process within which NumPy can be loaded.

It cannot be loaded with less than `_LEAST_SPACE` bytes of address space. With `_ENOUGH_SPACE` bytes and
`_ENOUGH_PROCESSES` processes, any number of its threads can start. A negative value means that there is no limit.
"""


def explain(error: Exception) -> int:
    """Print what went wrong and what to do about it, and return the exit status."""
    if _wants_traceback():
        with suppress(OSError, ValueError):
            traceback.print_exc()
    if isinstance(error, WorkbenchError):
        complain(error.message, error.hint)
        return error.exit_code
    if isinstance(error, MemoryError) or _UNMAPPED in str(error):
        complain("out of memory", "end other programs, raise `ulimit -v`, or read less with --rank and --step")
        return Exit.INPUT
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        complain("the answer was not written: stdout is closed", "do not close stdout, or write to a file with -o FILE")
        return Exit.INPUT
    if isinstance(error, OSError):
        complain(str(error), _HINTS.get(error.errno or 0, "check the path, its permissions, and the free space"))
        return Exit.INPUT
    message = f"{type(error).__name__}: {error}"
    complain(f"internal error: {' '.join(message.split())[:LONGEST]}", "report it with the output of --debug")
    return Exit.BUG


_UNMAPPED = "failed to map segment from shared object"
"""A part of the message of an ImportError if the address space has no room for a library."""
LONGEST = 300
"""The most characters of an internal error's message that are shown."""
_HINTS = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space: your quota is used up",
    errno.EMFILE: "raise the limit on open files: ulimit -n 4096",
    errno.EAGAIN: "raise the limit on processes (ulimit -u), or end some",
    errno.ENOMEM: "end other programs, or raise ulimit -v",
    errno.EROFS: "the disk can only be read: write elsewhere",
}
