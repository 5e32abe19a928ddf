"""Read the hint at the end of this project's own errors; the hint is the next step to advise.

For example:

    CheckpointError: step-2 holds the weights of llama3 debugmodel, and this run trains llama3 8B
    hint: choose that model, or another checkpoint
"""

import re

_HINT = re.compile(r"^[ \t]*hint: (\S[^\r\n]*)", re.MULTILINE)
_LONGEST_HINT = 1000


def split_hint(message: str) -> tuple[str, str]:
    """Return (text, hint) of an error's message; the hint is empty if the message has no line `hint: ...`."""
    # The last one: the text may quote another error.
    last = next(iter([*_HINT.finditer(message)][::-1]), None)
    return (message[: last.start()].rstrip(), last[1].strip()[:_LONGEST_HINT]) if last else (message, "")


def hint_in(line: str) -> str:
    """Return the hint in a line of a log; empty if the line is no hint."""
    match = _HINT.match(line)
    return match[1].strip()[:_LONGEST_HINT] if match else ""
