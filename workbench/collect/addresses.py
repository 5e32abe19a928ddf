"""Read the address of a receiver, and find out whether it belongs to this machine."""

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from workbench.errors import UsageProblem

HINT = "give HOST:PORT, such as head:29501 or 10.0.0.4:29501"


@dataclass(frozen=True)
class Address:
    """The host and port of a receiver; `scheme` is https if a proxy in front of the receiver speaks TLS."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        """The address as a URL without a path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def is_free_here(self) -> bool:
        """Return whether the address belongs to this machine, and no process listens there."""
        try:
            family, kind, _, _, place = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                # The connections of a receiver that has just ended do not make its port unusable.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except OSError:
            return False
        return True


def parse_address(text: str, default_host: str = "") -> Address:
    """Return the address in a text such as `head:29501`, `:29501` (on the default host) or `https://head:443`.

    Raises:
        UsageProblem: The text is not an address.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port, host = parts.port, parts.hostname or default_host
    except ValueError as error:
        raise UsageProblem(f"{text}: {error}", HINT) from error
    port = port or (443 if parts.scheme == "https" else None)
    if not host or not port or parts.scheme not in ("http", "https") or parts.path.strip("/"):
        raise UsageProblem(f"{text!r} is not the address of a receiver", HINT)
    return Address(host, port, parts.scheme)
