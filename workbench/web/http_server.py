"""The HTTP server of the dashboard, with limits on connections, headers, bodies and time."""

import copy
import logging
import os
import resource
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import BaseWSGIServer, MultiSocketServer, create_server
from waitress.wasyncore import close_all

from workbench.errors import UsageProblem
from workbench.web.access import AccessControl
from workbench.web.uploads import MOST_BYTES

THREADS = 8
MOST_CONNECTIONS = 512
"""The most open connections: a browser holds six, and other clients may connect without sending anything."""
REQUEST_S = 20
"""The seconds in which a connection without the token must send a whole request, header and body."""
SILENCE_S = 30
"""The seconds without a byte after which a connection is closed; a request that is being answered may take longer."""
_HEADER_BYTES = 64 << 10
STRANGER_BYTES = 4 << 10
"""The longest body of a request without the token, so that strangers cannot fill the disk of this machine."""


@dataclass(frozen=True)
class Server:
    """A waitress server; `sockets` maps file descriptors to the server's listeners and open connections."""

    inner: BaseWSGIServer | MultiSocketServer
    sockets: dict[int, Any]

    @property
    def listeners(self) -> list[BaseWSGIServer]:
        """The listening servers; there are two if the host name has two addresses, as `localhost` may have."""
        return [one for one in self.sockets.values() if isinstance(one, BaseWSGIServer)]

    @property
    def port(self) -> int:
        """The port of the first listener."""
        listening_socket = self.listeners[0].socket
        assert listening_socket is not None
        return int(listening_socket.getsockname()[1])

    def run(self) -> None:
        """Answer requests until SystemExit or KeyboardInterrupt is raised, or until another thread calls `stop`."""
        self.inner.run()

    def stop(self) -> None:
        """Stop `run`, which runs in another thread: close all connections, and let it return."""
        for listener in self.listeners:
            listener.task_dispatcher.shutdown()
        # Closed from here, a connection that the other thread is accepting would be left, and keep it running.
        trigger: Any = self.listeners[0].trigger  # an int, according to its stubs
        trigger.pull_trigger(self.close)

    def close(self) -> None:
        """Close the listeners and all connections; while `run` is running, only its own thread may call this."""
        for channel in list(self.sockets.values()):
            if isinstance(channel, HTTPChannel):
                channel.handle_close()
        close_all(self.sockets)


def listening(host: str, port: int, app: AccessControl) -> Server:
    """Return a waitress server that listens on a host and port.

    Raises:
        UsageProblem: The port is in use, or the host name does not belong to this machine.
    """
    try:
        return started(app, host=host, port=port)
    except (OSError, ValueError, OverflowError) as error:
        why = f"cannot listen on {host}, port {port}"
        raise UsageProblem(why, "choose another with --port, or 0 for a free one") from error


@contextmanager
def listening_on_socket(path: Path, app: AccessControl) -> Iterator[Server]:
    """Yield a server that listens on a Unix socket of mode 0600; the socket is removed afterwards.

    Raises:
        UsageProblem: Another server listens there, another file has this path, or the folder cannot be written.
    """
    if _is_listening(path):
        raise UsageProblem(f"{path}: a server listens there already", "choose another path for --socket")
    # Between `bind` and `chmod` the mode is that of the umask: nobody may connect in that moment.
    mask = os.umask(0o177)
    try:
        server = started(app, unix_socket=str(path), unix_socket_perms="600")
    except (OSError, ValueError) as error:
        hint = "give a short path (at most 107 bytes) in a folder of yours, where no other file is"
        raise UsageProblem(f"{path}: cannot listen there: {error}", hint) from error
    finally:
        os.umask(mask)
    try:
        yield server
    finally:
        path.unlink(missing_ok=True)


def _is_listening(path: Path) -> bool:
    """Return whether a process accepts connections on the Unix socket at `path`.

    If a killed server has left its socket file behind, the result is False.
    """
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
    except OSError:
        return False
    return True


def started(app: AccessControl, **place: Any) -> Server:
    """Return a waitress server for the app; `place` has waitress's keyword arguments for the address to listen on.

    Raises:
        OSError: The server cannot listen on this address.
        ValueError: The address is not valid.
    """
    # Its warnings would go to the terminal, in the middle of what the user runs there.
    logging.getLogger("waitress").setLevel(logging.CRITICAL)
    waited_for: dict[int, Any] = {}
    try:
        inner = create_server(
            app,
            map=waited_for,
            **place,
            threads=THREADS,
            connection_limit=most_connections() + 8,  # `_make_room` keeps their number lower
            channel_timeout=SILENCE_S,
            max_request_header_size=_HEADER_BYTES,
            max_request_body_size=MOST_BYTES,
            # `select` cannot watch descriptors from 1024 on.
            asyncore_use_poll=True,
            ident=None,
        )
    except BaseException:
        close_all(waited_for)  # waitress opens a pipe before it listens
        raise
    server = Server(inner, waited_for)
    for listener in server.listeners:
        listener.channel_class = _channel_for(app.door.admits)
    return server


def most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft // 2))


def _channel_for(admits: Callable[[str], bool]) -> type[HTTPChannel]:
    """Return a connection class for waitress that serves holders of the token first; `admits` knows their cookies.

    Long request bodies need the token. A connection that has not shown it must send each request within `REQUEST_S`,
    however often it sends a byte. If there are too many connections, a new one takes the place of the oldest one that
    has not shown the token, of the peer that has most of these: strangers can only push out each other.
    """

    class Parser(HTTPRequestParser):
        def __init__(self, adj: Any, channel: "Channel") -> None:
            super().__init__(adj)
            self.channel = channel

        def parse_header(self, header_plus: bytes) -> None:
            super().parse_header(header_plus)
            if admits(self.headers.get("COOKIE", "")):
                self.channel.is_admitted = True
                return
            # All connections share this object: a change in place would limit admitted requests, too.
            self.adj = copy.copy(self.adj)
            self.adj.max_request_body_size = STRANGER_BYTES

    class Channel(HTTPChannel):
        def __init__(self, server: Any, *arguments: Any, **named: Any) -> None:
            # Before waitress's own code, which lets the loop see the connection.
            self.is_admitted = False
            self.began: float | None = None
            self.parser_class = partial(Parser, channel=self)  # type: ignore[assignment]  # waitress calls it
            super().__init__(server, *arguments, **named)
            _make_room(server, self)

        def received(self, data: bytes) -> Any:
            if self.began is None:
                self.began = time.monotonic()
            result = super().received(data)
            if self.request is None:
                self.began = None
            elif not self.is_admitted and time.monotonic() - self.began > REQUEST_S:
                self.will_close = True
            return result

    return Channel


def _make_room(server: Any, newest: HTTPChannel) -> None:
    """Close a connection if `newest` is one too many: of those without the token, the oldest of the busiest peer."""
    channels = list(server.active_channels.values())
    if len(channels) <= most_connections():
        return
    strangers = [c for c in channels if c is not newest and not getattr(c, "is_admitted", True) and not c.requests]
    peers = Counter(peer_of(channel) for channel in strangers)
    if strangers:
        busiest = peers.most_common(1)[0][0]
        oldest = min((c for c in strangers if peer_of(c) == busiest), key=lambda channel: channel.creation_time)
        oldest.handle_close()


def peer_of(channel: Any) -> str:
    return str(channel.addr[0] if isinstance(channel.addr, tuple) else channel.addr)
