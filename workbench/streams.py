"""Make stdin, stdout and stderr safe to use if they are closed, on a full disk, or in a limited encoding."""

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Mapping

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
    """Return a character as a JSON escape in ASCII; a character beyond 16 bits becomes two surrogates."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def prepare_streams() -> None:
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
    """Return whether a file descriptor is open."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def flush_stdout() -> None:
    """Flush stdout.

    Raises:
        OSError: The disk is full, or the reading end of a pipe is closed.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def settle_stdout() -> None:
    """Flush stdout; if this fails, discard the text that could not be written.

    Otherwise Python would print an error at exit.
    """
    try:
        flush_stdout()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            flush_stdout()
