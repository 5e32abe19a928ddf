"""Listen for parcels over HTTP: only signed messages of limited size are read, by a fixed number of threads."""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import msgspec
from waitress.server import BaseWSGIServer, MultiSocketServer, create_server

from analyzers.words import quantity
from workbench.collect.parcel import PARCEL_BYTES, PATH, SIGNATURE, Parcel
from workbench.collect.receiver import Receiver, Refusal
from workbench.collect.token import is_signed, signature
from workbench.console import note
from workbench.errors import UsageProblem

THREADS = 16
"""The number of threads that answer requests; most of them wait for the disk."""
MOST_CONNECTIONS = 1000
SILENCE_S = 30
HEADER_BYTES = 8 << 10
COMPLAINTS_S = 60.0
"""The shortest time in seconds between two reports of requests without the right token."""


class Service:
    """The WSGI application that checks the signature of each request and passes the parcel to the receiver."""

    def __init__(self, receiver: Receiver, token: bytes) -> None:
        self._receiver, self._token = receiver, token
        self._strangers, self._complained = 0, 0.0
        self._lock = threading.Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a WSGI request."""
        if environ["REQUEST_METHOD"] != "POST" or environ.get("PATH_INFO") != PATH:
            return answer(start_response, "404 Not Found", b"")
        body = environ["wsgi.input"].read(PARCEL_BYTES + 1)
        if not is_signed(self._token, body, environ.get(f"HTTP_{SIGNATURE.upper().replace('-', '_')}", "")):
            self._complain(str(environ.get("REMOTE_ADDR", "")))
            return answer(start_response, "401 Unauthorized", b"")
        try:
            reply = self._receiver.take(msgspec.msgpack.decode(body, type=Parcel))
        except (msgspec.DecodeError, Refusal) as error:
            return answer(start_response, "400 Bad Request", str(error).encode())
        sent = msgspec.msgpack.encode(reply)
        return answer(start_response, "200 OK", sent, (SIGNATURE, signature(self._token, sent)))

    def _complain(self, address: str) -> None:
        with self._lock:
            self._strangers += 1
            if time.monotonic() - self._complained < COMPLAINTS_S and self._complained:
                return
            count, self._strangers, self._complained = self._strangers, 0, time.monotonic()
        note(f"refused {quantity(count, 'request')} that the token does not sign, the last one from {address}")


def answer(start_response: StartResponse, status: str, body: bytes, *headers: tuple[str, str]) -> Iterable[bytes]:
    """Start a WSGI response and return its body."""
    kind = ("Content-Type", "application/octet-stream")
    start_response(status, [kind, ("Content-Length", str(len(body))), *headers])
    return [body]


def listening(host: str, port: int, service: Service) -> BaseWSGIServer | MultiSocketServer:
    """Return a server that listens on a host and port; its `run` answers requests until a signal ends it.

    Raises:
        UsageProblem: The port is in use, or the address does not belong to this machine.
    """
    logging.getLogger("waitress").setLevel(logging.CRITICAL)
    limits: dict[str, Any] = {
        "threads": THREADS,
        "connection_limit": MOST_CONNECTIONS,
        "channel_timeout": SILENCE_S,
        "max_request_header_size": HEADER_BYTES,
        "max_request_body_size": PARCEL_BYTES,
        "asyncore_use_poll": True,  # `select` cannot watch descriptors from 1024 on
        "ident": None,
    }
    try:
        return create_server(service, host=host, port=port, **limits)
    except (OSError, ValueError, OverflowError) as error:
        why = f"cannot listen on {host}, port {port}: {error}"
        raise UsageProblem(why, "give an address of this machine and a free port") from error
