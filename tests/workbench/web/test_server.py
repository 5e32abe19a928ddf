"""`workbench serve` as a process, and unexpected requests from strangers to its port."""

import contextlib
import http.client
import os
import random
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from waitress.channel import HTTPChannel
from waitress.server import create_server

from workbench.errors import UsageProblem
from workbench.web import http_server
from workbench.web.http_server import STRANGER_BYTES, THREADS, AccessControl, Door, listening, listening_on_socket
from workbench.web.server import Place, ended_by_signals, open_browser, serve

FIXTURES = Path(__file__).parents[2] / "fixtures"
PATIENCE_S = 120


class Serving:
    """A dashboard in a separate process, whose temporary folder is the test's."""

    def __init__(self, folder, *options):
        self.log = folder / "log"
        # Under nohup the signal is ignored, which children inherit.
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workbench", "serve", FIXTURES / "stuck_2ranks", "--port", "0", *options],
                stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(folder)},
            )  # fmt: skip
        signal.signal(signal.SIGHUP, before)
        limit = time.monotonic() + PATIENCE_S
        while not (told := re.search(r"http://(\S+):(\d+)/\?token=(\S+)", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit
            time.sleep(0.05)
        self.host, self.port, self.token = told[1], int(told[2]), told[3]
        answer, _ = self.ask("GET", f"/?token={self.token}")
        self.cookie = answer.getheader("Set-Cookie").split(";")[0]
        self.folder = answer.getheader("Location").rstrip("/")

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request(method, path, body=body, headers=headers)
        with closing(connection), connection.getresponse() as answer:
            return answer, answer.read()

    def drop(self, content=b"x"):
        headers = {"X-Workbench": "drop", "Cookie": self.cookie}
        return self.ask("PUT", f"{self.folder}/drop/1/a", content, **headers)[0].status

    def send(self, data):
        """Send bytes, which may be no valid request, and return the first line of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            try:
                connection.sendall(data)
                return connection.recv(4096).split(b"\r\n")[0]
            except (BrokenPipeError, ConnectionResetError):
                return b"closed"


@pytest.fixture(scope="module")
def serving_process(tmp_path_factory):
    one = Serving(tmp_path_factory.mktemp("serving"))
    yield one
    one.process.kill()
    one.process.wait()


def test_nothing_is_told_without_the_token(serving_process):
    for path in ("/", "/report.json", "/_dash-layout", "/assets/workbench.js", "/open/1/"):
        for folder in ("", serving_process.folder):
            answer, body = serving_process.ask("GET", folder + path)
            assert answer.status == 403, path
            assert b"printed" in body
    assert (
        serving_process.ask("GET", f"{serving_process.folder}/report.json", Cookie=serving_process.cookie)[0].status
        == 200
    )


def test_the_token_is_printed_once_and_never_logged(serving_process):
    serving_process.ask("GET", f"/no/such/page?token={serving_process.token}")
    serving_process.ask("GET", f"/report.json?token=x{serving_process.token}")
    assert serving_process.log.read_text().count(serving_process.token) == 1


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"a" * (1 << 20), b"431"),
        (b"PUT /drop/1/a HTTP/1.1\r\nContent-Length: abc", b"400"),
        (b"PUT /drop/1/a HTTP/1.1\r\nContent-Length: -5", b"400"),
        (b"PUT /drop/1/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello", b"400"),
        (b"PUT /drop/1/a HTTP/1.1\r\nContent-Length: %d" % (STRANGER_BYTES + 1), b"413"),
        (b"PUT /drop/1/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1400\r\n" + b"x" * 0x1400 + b"\r\n0", b"413"),
        (b"\x16\x03\x01\x00\xff\xff", b"400"),
    ],
)
def test_what_is_no_request_is_refused(serving_process, request_head, status):
    line = serving_process.send(request_head + b"\r\n\r\n")
    assert line == b"closed" or re.match(rb"HTTP/1\.[01] %b " % status, line), line
    assert (
        serving_process.ask("GET", f"{serving_process.folder}/report.json", Cookie=serving_process.cookie)[0].status
        == 200
    )


def test_a_limit_for_strangers_is_none_for_the_user(serving_process):
    assert serving_process.ask("PUT", "/drop/1/a", b"x")[0].status == 403
    assert serving_process.drop(bytes(10 * STRANGER_BYTES)) == 200


@contextlib.contextmanager
def running():
    """Yield a server in this process, which answers in a thread."""
    server = listening("127.0.0.1", 0, AccessControl(lambda environ, start: [], Door()))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(PATIENCE_S)


def status_line(port):
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        return connection.recv(4096).split(b"\r\n")[0]


def test_a_silent_connection_is_closed(monkeypatch):
    monkeypatch.setattr(http_server, "SILENCE_S", 1)
    with running() as server:
        # Seconds between two looks at the connections, and when the next is due.
        server.listeners[0].adj.cleanup_interval, server.listeners[0].next_channel_cleanup = 1, 0
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as silent:
            silent.sendall(b"GET / HTT")
            assert silent.recv(1) == b""


def test_a_request_that_comes_byte_by_byte_is_given_up(monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_S", 1)
    with running() as server, socket.create_connection(("127.0.0.1", server.port), timeout=20) as dripping:
        dripping.sendall(b"GET / HTTP/1.1\r\nX: ")
        with pytest.raises(OSError, match=r"reset|[Bb]roken|aborted"):  # noqa: PT012  # the peer closes at some byte
            for _ in range(100):
                dripping.sendall(b"a")
                time.sleep(0.1)


def test_strangers_keep_nobody_out(monkeypatch):
    """Each of them sends a byte now and then, so that none is silent; the next one to come is answered at once."""
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 20)
    with running() as server, contextlib.ExitStack() as opened:
        for _ in range(60):
            stranger = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            with contextlib.suppress(OSError):
                stranger.sendall(b"GET /")
        began = time.monotonic()
        assert b" 403 " in status_line(server.port)
        assert time.monotonic() - began < 10


def test_connections_beyond_the_limit_wait_outside(monkeypatch):
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 20)
    with running() as server, contextlib.ExitStack() as opened:
        for _ in range(60):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
        time.sleep(1)
        inside = [channel for channel in [*server.sockets.values()] if isinstance(channel, HTTPChannel)]
        assert 10 < len(inside) <= 20
        opened.close()
        assert b" 403 " in status_line(server.port)


def test_a_server_stops_while_connections_arrive():
    """A browser opens connections until the end: one that is accepted in that moment keeps the server no longer."""
    for _ in range(40):
        kept, ended = [], threading.Event()
        server = listening("127.0.0.1", 0, AccessControl(lambda environ, start: [], Door()))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()

        def connect(port=server.port, kept=kept, ended=ended):
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    kept.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))

        clients = [threading.Thread(target=connect) for _ in range(3)]
        for client in clients:
            client.start()
        time.sleep(0.01)
        server.stop()
        thread.join(PATIENCE_S)
        ended.set()
        for client in clients:
            client.join()
        for connection in kept:
            connection.close()
        assert not thread.is_alive()


def test_half_of_the_open_files_are_for_connections():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (600, before[1]))
        assert http_server.most_connections() == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_many_open_files_do_not_stop_it():
    """A run of a thousand ranks opens so many files; `select` fails for descriptors from 1024 on."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with running() as server:
            assert b" 403 " in status_line(server.port)
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_signal_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_silent_clients_do_not_stop_it(serving_process):
    silent = [socket.create_connection(("127.0.0.1", serving_process.port)) for _ in range(200)]
    for connection in silent:
        connection.sendall(b"GET / HTT")
    assert (
        serving_process.ask("GET", f"{serving_process.folder}/report.json", Cookie=serving_process.cookie)[0].status
        == 200
    )
    for connection in silent:
        connection.close()


def test_slow_and_greedy_clients_keep_nobody_waiting(serving_process, script):
    """`python benchmarks/safety/soak.py serve` does this with 200 clients for ten minutes."""
    soak, tally, rng = script("safety/soak"), script("safety/soak").Tally(), random.Random(1)
    site = soak.Dashboard(
        serving_process.process.pid, serving_process.port, serving_process.cookie, serving_process.folder
    )
    clients = [threading.Thread(target=kind, args=(site, rng, tally)) for kind in soak.KINDS * 3]
    for client in clients:
        client.start()
    for client in clients:
        client.join(PATIENCE_S)
    assert not tally.errors
    assert tally.statuses["200"] == 21
    assert tally.statuses["200 read slowly"] == tally.statuses["cut by the client"] == 3
    assert not [status for status in tally.statuses if re.match("2.*without the token", status)]
    assert len(list(Path(f"/proc/{site.process}/task").iterdir())) <= THREADS + 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_dropped_is_removed_at_the_end(tmp_path, number):
    one = Serving(tmp_path)
    assert one.drop() == 200
    assert list(tmp_path.glob("workbench-*/dropped/1/a"))
    assert [path.stat().st_mode & 0o077 for path in tmp_path.glob("workbench-*")] == [0]
    one.process.send_signal(number)
    assert one.process.wait(PATIENCE_S) == 130
    assert not list(tmp_path.glob("workbench-*"))
    assert "Traceback" not in one.log.read_text()


def test_beyond_loopback_it_warns_and_says_how_to_tunnel(tmp_path):
    one = Serving(tmp_path, "--host", "0.0.0.0")
    one.process.terminate()
    one.process.wait(PATIENCE_S)
    assert one.host not in ("0.0.0.0", "127.0.0.1")
    assert "not encrypted" in one.log.read_text()
    assert "ssh -L" in one.log.read_text()


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket, as through ssh."""

    def __init__(self, path):
        super().__init__("127.0.0.1", timeout=PATIENCE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.path))


def asked(path, address, **headers):
    """Return the status and the headers of an answer."""
    with closing(UnixConnection(path)) as connection:
        connection.request("GET", address, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers


def test_a_unix_socket_is_open_to_its_user_alone(tmp_path):
    """Other users can never connect, the token is needed, too, and the socket is deleted at the end."""
    path, log = tmp_path / "page.sock", tmp_path / "log"
    command = [sys.executable, "-m", "workbench", "serve", FIXTURES / "stuck_2ranks", "--socket", path]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stderr=output, umask=0)
    limit = time.monotonic() + PATIENCE_S
    while not (told := re.search(r"http://127.0.0.1:(\d+)/\?token=(\S+)", log.read_text())):
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < limit
        time.sleep(0.05)
    assert f"ssh -N -L {told[1]}:{path} " in log.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert asked(path, "/report.json")[0] == 403
    _, headers = asked(path, f"/?token={told[2]}")
    assert asked(path, f"{headers['Location']}report.json", Cookie=headers["Set-Cookie"].split(";")[0])[0] == 200
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, "listens there already" in again.stderr) == (2, True)
    server.terminate()
    assert server.wait(PATIENCE_S) == 130
    assert not path.exists()


def test_only_a_socket_that_a_killed_server_left_gives_way(tmp_path):
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(left))
    app = AccessControl(lambda environ, start: [], Door())
    with listening_on_socket(left, app) as server:
        server.close()
        assert stat.S_IMODE(left.stat().st_mode) == 0o600
    assert not left.exists()
    (tmp_path / "notes").write_text("mine")
    for path in (tmp_path / "notes", tmp_path / "nowhere" / "a.sock", tmp_path / ("n" * 200)):
        with pytest.raises(UsageProblem, match="cannot listen there"), listening_on_socket(path, app):
            pass
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_unix_socket_is_at_no_moment_open_to_others(tmp_path, monkeypatch):
    """Until the server sets the socket's mode, the mode follows from the umask."""
    masks = []

    def create_while_watched(*arguments, **options):
        masks.append(os.umask(0o777))
        os.umask(masks[-1])
        return create_server(*arguments, **options)

    monkeypatch.setattr("workbench.web.http_server.create_server", create_while_watched)
    before = os.umask(0)
    try:
        with listening_on_socket(tmp_path / "a.sock", AccessControl(lambda environ, start: [], Door())) as server:
            server.close()
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    assert masks == [0o177]


@pytest.mark.parametrize("place", [Place(socket=Path("a"), browse=True), Place("0.0.0.0", socket=Path("a"))])
def test_a_socket_takes_no_address(place):
    with pytest.raises(UsageProblem, match="no address"):
        serve(FIXTURES / "stuck_2ranks", place)


@pytest.mark.parametrize(("host", "address"), [("::1", "http://[::1]:5"), ("127.0.0.1", "http://127.0.0.1:5")])
def test_an_address_is_one_that_a_browser_takes(host, address):
    assert Place(host).address(5) == address


def test_the_browser_gets_the_token_from_a_file(tmp_path, monkeypatch):
    """Every user of the machine can read the arguments of a process, so the token must not be among them."""
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    open_browser("http://127.0.0.1:5/?token=s3cret", tmp_path / "open.html")
    assert "s3cret" not in opened[0]
    assert "token=s3cret" in (tmp_path / "open.html").read_text()
    assert (tmp_path / "open.html").stat().st_mode & 0o077 == 0
