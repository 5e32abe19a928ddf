"""Read errors that PyTorch relays: they happened on some ranks, and are raised on all of them.

A distributed checkpoint gathers the errors of all ranks, and then raises them everywhere:

    CheckpointException: CheckpointException ranks:dict_keys([2])
    Traceback (most recent call last): (RANK 2)
      File "torch/serialization.py", line 1253, in _save
    TypeError: cannot pickle '_thread.lock' object
"""

import re

_FAILED_RANKS = re.compile(r"\branks:dict_keys\(\[(\d{1,6}(?:, \d{1,6}){0,999})\]\)")
_RANK_OF_TRACEBACK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,6})\)")


def failed_ranks(message: str) -> list[int]:
    """Return the ranks on which a relayed error happened, ascending; empty if the message relays no error.

    `message` is the text of an exception by which PyTorch raises the errors of some ranks on all ranks.
    """
    match = _FAILED_RANKS.search(message)
    return sorted(map(int, match[1].split(", "))) if match else []


def first_error(message: str) -> str:
    """Return the first failed rank's own error from the message of an exception that relays it: `TypeError: ...`.

    The result is empty if the message relays no error, or has no complete traceback of one.
    """
    parts = _RANK_OF_TRACEBACK.split(message, maxsplit=2)
    if not failed_ranks(message) or len(parts) < 3:
        return ""
    lines = (line for line in parts[2].splitlines() if line and not line.startswith(" "))
    return next(lines, "")
