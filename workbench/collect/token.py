"""Read the secret that sender and receiver share, and sign messages with it; the secret itself is never sent."""

import hashlib
import hmac
import os
from pathlib import Path

from analyzers.errors import InputError
from analyzers.files import read_whole
from workbench.errors import UsageProblem

VARIABLE = "WORKBENCH_TOKEN"
SHORTEST, LONGEST = 16, 4096
MAKE_ONE = (
    f"make one, `(umask 077; openssl rand -hex 32 > token)`, and give --token-file token, or {VARIABLE}, on all nodes"
)


def read_token(path: Path | None) -> bytes:
    """Return the token in a file; without a file, in the environment variable `WORKBENCH_TOKEN`.

    Raises:
        UsageProblem: There is neither a file nor a variable, or the token is too short.
        InputError: The file cannot be read.
    """
    if path is None:
        token = os.environ.get(VARIABLE, "").encode()
    else:
        try:
            token = read_whole(path, LONGEST)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}", "check the path of the token and its permissions") from error
    token = token.strip()
    if not token:
        raise UsageProblem("no token: whoever can connect could send files", MAKE_ONE)
    if len(token) < SHORTEST:
        raise UsageProblem(f"the token has fewer than {SHORTEST} characters", MAKE_ONE)
    return token


def signature(token: bytes, body: bytes) -> str:
    """Return the signature of a message: an HMAC-SHA256 as hexadecimal digits."""
    return hmac.new(token, body, hashlib.sha256).hexdigest()


def is_signed(token: bytes, body: bytes, signed: str) -> bool:
    """Return whether `signed` is the signature of a message.

    The comparison always takes the same time, so an attacker learns nothing about the right signature.
    """
    return hmac.compare_digest(signature(token, body).encode(), signed.encode("utf-8", "replace"))
