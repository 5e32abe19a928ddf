"""`workbench serve` as a process, and what strangers send to its port."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from workbench.web.http_server import STRANGER_BYTES
from workbench.web.server import Place, open_browser

FIXTURES = Path(__file__).parents[2] / "fixtures"
PATIENCE_S = 120


class Serving:
    """A dashboard in a process of its own, whose temporary folder is the test's."""

    def __init__(self, folder, *options):
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workbench", "serve", FIXTURES / "stuck_2ranks", "--port", "0", *options],
                stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(folder)},
            )  # fmt: skip
        limit = time.monotonic() + PATIENCE_S
        while not (told := re.search(r"http://(\S+):(\d+)/\?token=(\S+)", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit
            time.sleep(0.05)
        self.host, self.port, self.token = told[1], int(told[2]), told[3]
        answer, _ = self.ask("GET", f"/?token={self.token}")
        self.cookie = answer.getheader("Set-Cookie").split(";")[0]

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request(method, path, body=body, headers=headers)
        with closing(connection), connection.getresponse() as answer:
            return answer, answer.read()

    def drop(self):
        return self.ask("PUT", "/drop/1/a", b"x", **{"X-Workbench": "drop", "Cookie": self.cookie})[0].status

    def send(self, data):
        """The first line of the answer to bytes that may be no request."""
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
        answer, body = serving_process.ask("GET", path)
        assert answer.status == 403, path
        assert b"printed" in body
    assert serving_process.ask("GET", "/report.json", Cookie=serving_process.cookie)[0].status == 200


def test_the_token_is_printed_once_and_never_logged(serving_process):
    serving_process.ask("GET", f"/no/such/page?token={serving_process.token}")
    serving_process.ask("GET", f"/report.json?token=x{serving_process.token}")
    assert serving_process.log.read_text().count(serving_process.token) == 1


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET / HTTP/1.1\r\nX: " + b"a" * (1 << 20),
        b"PUT /drop/1/a HTTP/1.1\r\nContent-Length: abc",
        b"PUT /drop/1/a HTTP/1.1\r\nContent-Length: -5",
        b"PUT /drop/1/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello",
        b"PUT /drop/1/a HTTP/1.1\r\nContent-Length: %d" % (STRANGER_BYTES + 1),
        b"\x16\x03\x01\x00\xff\xff",
    ],
)
def test_what_is_no_request_is_refused(serving_process, request_head):
    line = serving_process.send(request_head + b"\r\n\r\n")
    assert line == b"closed" or re.match(rb"HTTP/1\.[01] 4\d\d ", line), line
    assert serving_process.ask("GET", "/report.json", Cookie=serving_process.cookie)[0].status == 200


def test_silent_clients_do_not_stop_it(serving_process):
    silent = [socket.create_connection(("127.0.0.1", serving_process.port)) for _ in range(200)]
    for connection in silent:
        connection.sendall(b"GET / HTT")
    assert serving_process.ask("GET", "/report.json", Cookie=serving_process.cookie)[0].status == 200
    for connection in silent:
        connection.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_dropped_is_removed_at_the_end(tmp_path, number):
    one = Serving(tmp_path)
    assert one.drop() == 200
    assert list(tmp_path.glob("workbench-*/dropped/1/a"))
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


@pytest.mark.parametrize(("host", "address"), [("::1", "http://[::1]:5"), ("127.0.0.1", "http://127.0.0.1:5")])
def test_an_address_is_one_that_a_browser_takes(host, address):
    assert Place(host).address(5) == address


def test_the_browser_gets_the_token_from_a_file(tmp_path, monkeypatch):
    """Its arguments can be read by every user of the machine."""
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    open_browser("http://127.0.0.1:5/?token=s3cret", tmp_path / "open.html")
    assert "s3cret" not in opened[0]
    assert "token=s3cret" in (tmp_path / "open.html").read_text()
    assert (tmp_path / "open.html").stat().st_mode & 0o077 == 0
