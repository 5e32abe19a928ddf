"""Serve folders over HTTP from this process, and record what is requested."""

import contextlib
import http.server
import threading
import time
from functools import partial

import pytest


class Site(http.server.ThreadingHTTPServer):
    """A server of one folder; `requests` has the method and path of each request.

    A path in `cut` is answered with so many bytes of its content and then nothing until `release`, or the end of the
    connection. A path in `redirects` is answered with a redirect to its address, and one in `endless` without end.
    One in `slow` is answered with a byte now and then, and one in `silent` with nothing. Each takes `delay_s` longer.
    """

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.requests, self.cut, self.redirects, self.release = [], {}, {}, threading.Event()
        self.delay_s = 0.0
        self.endless, self.slow, self.silent = set(), set(), set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"

    def downloads(self):
        return sorted(path for method, path in self.requests if method == "GET" and not path.endswith("/"))


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        self.server.requests.append((self.command, self.path))

    def do_GET(self):
        time.sleep(self.server.delay_s)
        if self.path in self.server.silent:
            self.server.release.wait(60)
            return
        if self.path not in self.server.endless | self.server.slow:
            super().do_GET()
            return
        self.send_response(http.HTTPStatus.OK)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        with contextlib.suppress(OSError):
            while self.path in self.server.slow and not self.server.release.wait(0.05):
                self.wfile.write(b" ")
            while not self.server.release.is_set():
                self.wfile.write(b'<a href="rank_0.log">x</a>' * 10_000)

    def send_head(self):
        if self.path not in self.server.redirects:
            return super().send_head()
        self.send_response(http.HTTPStatus.FOUND)
        self.send_header("Location", self.server.redirects[self.path])
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def copyfile(self, source, target):
        if self.path not in self.server.cut:
            super().copyfile(source, target)
            return
        target.write(source.read(self.server.cut[self.path]))
        target.flush()
        self.server.release.wait(60)


@pytest.fixture
def serve():
    """Fixture: a function that serves a folder until the end of the test."""
    sites = []

    def start(folder):
        sites.append(Site(folder))
        threading.Thread(target=partial(sites[-1].serve_forever, poll_interval=0.02), daemon=True).start()
        return sites[-1]

    yield start
    for site in sites:
        site.release.set()
        site.shutdown()
        site.server_close()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Fixture: the folder of a new cache."""
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
