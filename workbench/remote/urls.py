"""Recognise URLs among paths, and remove credentials from everything that is printed about URLs."""

import re

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::.*://)")
_LOCAL = re.compile(r"(?:file|local)://")
"""Matches URLs of files on this machine, which are read in place."""
_USER = re.compile(r"(?<=://)(?:[^/\s@:]*:(?!\d+/)[^\s@]*@|[^/\s]*@)")
"""Matches user and password in a URL; a password may contain slashes, but `host:8080/` is neither."""
_CONTAINER = re.compile(r"(?:abfss?|wasbs?)://")
"""Matches the protocols of Azure, in whose URLs the name of the container stands before the `@`."""
_QUERY = re.compile(r"\?[^\s'\")>]*")
"""Matches the query of a URL, which may contain signatures and tokens."""
_SECRET = re.compile(r"(?i)\b(\w*(?:secret|token|password|signature|credential|access_?key\w*)\w*['\"]?\s*[=:]\s*)\S+")
LONGEST = 200


def is_url(text: str) -> bool:
    return bool(URL.match(text))


def local_part(url: str) -> str | None:
    """Return the path in a URL such as `file:///data/run`; None if the URL has another protocol."""
    match = _LOCAL.match(url)
    return url[match.end() :] if match else None


def without_credentials(url: str) -> str:
    """Return a URL without user, password and query; it can be printed, and identifies a folder of the cache."""
    if "://" not in url:
        return url
    return _QUERY.sub("", url if _CONTAINER.match(url) else _USER.sub("", url))


def scrubbed(text: str) -> str:
    """Return the first line of a library's message, with credentials and tokens removed.

    >>> scrubbed("403: https://me:pw@host/run?X-Amz-Signature=1f token=abc")
    '403: https://host/run?... token=...'
    """
    line = (text.strip().splitlines() or [""])[0]
    return _SECRET.sub(r"\1...", _QUERY.sub("?...", _USER.sub("", line)))[:LONGEST]
