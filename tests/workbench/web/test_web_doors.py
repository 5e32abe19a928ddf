"""Test the access to the dashboard, and the files that users may drop onto it."""

import gzip
import json
import pickle
import re
import sys
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from threading import Barrier

import pytest
from werkzeug.test import Client

from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.web import http_server
from workbench.web.app import make_app
from workbench.web.http_server import MOST_BYTES, AccessControl, Door, Uploads
from workbench.web.pages import source
from workbench.web.served_run import served_run
from workbench.web.server import assembled

FIXTURES = Path(__file__).parents[2] / "fixtures"
SENT = {"X-Workbench": "drop"}


def inside(environ, start_response):
    start_response("200 OK", [])
    return [environ["PATH_INFO"].encode()]


@pytest.fixture
def drops(tmp_path):
    """Fixture: dropped files go to a folder of the test."""
    (tmp_path / "kept").mkdir()
    return Client(Uploads(inside, tmp_path / "kept", Options()))


DOOR = Door("s3cret", "f0lder")


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:1", "localhost", "[::1]:8050"])
def test_names_of_this_machine_pass(host):
    cookie = f"{DOOR.cookie}=s3cret"
    client = Client(AccessControl(inside, DOOR), use_cookies=False)
    assert client.get("/f0lder/memory", headers={"Host": host, "Cookie": cookie}).text == "/memory"
    assert client.get("/f0lder/memory", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8050",
        "127.0.0.1.evil.example:8050",
        "",
        "localhost:1@evil.example",
        "127.0.0.1:80:evil.example",
        "localhost:",
        "[::1].evil.example",
        "127.0.0.1, evil.example",
    ],
)
def test_a_name_that_was_made_to_point_here_does_not(host):
    """A foreign host name is refused even with the token; a server that listens beyond loopback accepts other names."""
    for private, status in ((True, 403), (False, 303)):
        client = Client(AccessControl(inside, DOOR, private))
        assert client.get("/memory?token=s3cret", headers={"Host": host}).status_code == status


def test_a_token_becomes_a_cookie_and_leaves_the_address():
    client = Client(AccessControl(inside, DOOR))
    assert client.get("/memory").status_code == 403
    welcomed = client.get("/memory?token=s3cret&rank=1")
    assert (welcomed.status_code, welcomed.headers["Location"]) == (303, "/f0lder/memory?rank=1")
    assert {"HttpOnly", "SameSite=Lax"} <= set(welcomed.headers["Set-Cookie"].split("; "))
    assert client.get("/f0lder/memory").text == "/memory"
    assert client.get("/memory?token=s3cret&at=%FF").headers["Location"] == "/f0lder/memory?at=%EF%BF%BD"


def test_what_has_to_do_with_the_token_is_kept_by_no_cache_and_told_to_no_page():
    client = Client(AccessControl(inside, DOOR))
    for address in ("/memory", "/memory?token=s3cret", "/memory?token=guess"):
        headers = client.get(address).headers
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_refusal_is_text_and_no_page():
    """Whatever its words repeat of the request, no browser takes them for markup."""
    refused = Client(AccessControl(inside, DOOR)).get("/memory")
    assert (refused.status_code, refused.headers["Content-Type"]) == (403, "text/plain; charset=utf-8")


@pytest.mark.parametrize("token", ["", "guess", "S3CRET", "s3cret%00", "%C3%A9", "%FF", "None", "s" * 5000])
def test_any_other_token_is_refused(token):
    client = Client(AccessControl(inside, DOOR), use_cookies=False)
    assert client.get(f"/memory?token={token}").status_code == 403
    assert client.get("/f0lder/memory", headers={"Cookie": f"{DOOR.cookie}={token}"}).status_code == 403


def test_the_token_is_compared_in_constant_time(monkeypatch):
    """A plain comparison answers sooner if an early character is wrong; a test cannot measure that reliably."""
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda *both: compared.append(both) or both[0] == both[1])
    assert DOOR.fits("s3cret")
    assert not DOOR.fits("s3creT")
    assert DOOR.inner_path("/f0lder/a") == "/a"
    assert compared == [(b"s3cret", b"s3cret"), (b"s3creT", b"s3cret"), (b"f0lder", b"f0lder")]


@pytest.mark.parametrize("cookie", ['k="\\777"', "=;;=", '"', "a" * 60_000, "workbench_token", "a\xff=b", "a/b=c"])
def test_a_malformed_cookie_is_refused(cookie):
    client = Client(AccessControl(inside, DOOR), use_cookies=False)
    assert client.get("/f0lder/", headers={"Cookie": cookie}).status_code == 403


def test_another_port_of_the_host_never_gets_the_cookie():
    """Browsers send a cookie to all ports of a host, but only to paths below its own, which others cannot guess."""
    doors = [Door(), Door()]
    assert len({door.folder for door in doors}) == 2
    assert all(len(door.token) >= 24 for door in doors)
    assert all(len(door.folder) >= 16 and door.folder not in door.token + door.cookie for door in doors)
    jar = Client(AccessControl(inside, DOOR))
    welcomed = jar.get("/memory?token=s3cret")
    assert "Path=/f0lder" in welcomed.headers["Set-Cookie"].split("; ")
    assert jar.get("/f0lder/memory").status_code == 200
    asked_elsewhere = []

    def other_port(environ, start_response):
        asked_elsewhere.append(environ.get("HTTP_COOKIE", ""))
        return inside(environ, start_response)

    jar.application = other_port
    for path in ("/", "/memory", "/f0lderx/", "/x/f0lder/", "/F0LDER/"):
        jar.get(path, base_url="http://localhost:9999")
    assert asked_elsewhere == [""] * 5


@pytest.mark.parametrize(
    "path", ["/", "/memory", "/f0lder", "/f0lderx/memory", "//f0lder/memory", "/report.json", "/%FF/"]
)
def test_the_cookie_opens_only_the_folder(path):
    cookie = f"{DOOR.cookie}=s3cret"
    client = Client(AccessControl(inside, DOOR), use_cookies=False)
    answered = client.get("http://localhost" + path, headers={"Cookie": cookie})
    assert answered.status_code == (303 if path == "/f0lder" else 403)


@pytest.mark.parametrize(("headers", "passes"), [
    ({}, True),
    ({"Origin": "http://localhost"}, True),
    ({"Origin": "null", "Sec-Fetch-Site": "same-origin"}, True),
    ({"Origin": "http://localhost:9999"}, False),
    ({"Origin": "http://evil.example"}, False),
    ({"Origin": "null"}, False),
    ({"Sec-Fetch-Site": "same-site"}, False),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}, False),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, False),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, True),
])  # fmt: skip
def test_pages_of_other_sites_and_ports_are_refused(headers, passes):
    """Only a link that a user follows is accepted."""
    cookie = f"{DOOR.cookie}=s3cret"
    client = Client(AccessControl(inside, DOOR), use_cookies=False)
    assert (client.get("/f0lder/a", headers={"Cookie": cookie, **headers}).status_code == 200) == passes
    if headers.get("Sec-Fetch-Site") == "cross-site":
        assert client.post("/f0lder/a", headers={"Cookie": cookie, **headers}).status_code == 403


@pytest.mark.parametrize("body", ["{}", "[]", "5", '{"output": "__class__", "inputs": [], "outputs": {}}', "[" * 9999])
def test_a_request_that_fails_prints_no_traceback(oom, capfd, body):
    client = make_app(served_run(oom, room_for(oom), Options())).server.test_client()
    answered = client.post("/_dash-update-component", data=body, headers={"Content-Type": "application/json"})
    assert answered.status_code >= 400
    said = capfd.readouterr()
    assert "Traceback" not in said.out + said.err + answered.text
    if answered.status_code >= 500:
        assert answered.text == "this request failed; the terminal of the server says why\n"
        assert said.err.startswith("error: ")


def test_two_dashboards_of_a_host_keep_their_cookies():
    """A browser stores the cookies of all ports of a host together."""
    assert Door().cookie != Door().cookie


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example"])
def test_the_welcome_leads_nowhere_else(path):
    """A redirect to a path with two slashes would lead to another host."""
    welcomed = Client(AccessControl(inside, DOOR)).get(f"http://localhost{path}?token=s3cret")
    assert re.match(r"/[^/\\]", welcomed.headers["Location"])


def drop(client, name, files):
    for file, content in files.items():
        assert client.put(f"/drop/{name}/{file}", data=content, headers=SENT).status_code == 200
    return client.post(f"/drop/{name}", headers=SENT)


def test_a_dropped_set_opens_as_a_dashboard(drops):
    """All dumps of a hang are dropped together; the page at the returned address shows that hang."""
    dumps = {path.name: path.read_bytes() for path in (FIXTURES / "stuck_2ranks" / "dumps").iterdir() if path.is_file()}
    told = drop(drops, "17", dumps)
    assert told.json == {"at": "/open/17/"}
    assert b"/open/17/_dash-component-suites" in drops.get("/open/17/").data
    document = json.loads(drops.get("/open/17/report.json").data)
    assert (document["verdict"]["class"], document["verdict"]["ranks"]) == ("host_stuck", [1])
    assert drops.get("/memory").text == "/memory"


def test_what_is_no_artefact_is_refused_with_a_hint(drops):
    told = drop(drops, "1", {"notes.txt": b"hello"})
    assert told.status_code == 422
    assert set(told.json) == {"error", "hint"}
    assert told.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["5/..%2f..%2fescaped", "5/%2e%2e", "5/...", "5/a%00b", "5/..\\..\\escaped", "../a", "%2e%2e/a", "x/a"]
)
def test_a_name_is_no_way_out(drops, tmp_path, name):
    drops.put(f"/drop/{name}", data=b"x", headers=SENT)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.parent == tmp_path / "kept" / "5" for path in written)


def test_only_the_page_itself_may_drop(drops, tmp_path):
    """A form on another page cannot send the required header."""
    assert drops.put("/drop/1/a", data=b"x").status_code == 403
    assert not list((tmp_path / "kept").iterdir())


def test_what_is_too_large_is_refused_before_it_is_read(drops, tmp_path):
    told = drops.put("/drop/1/big", headers=SENT, environ_overrides={"CONTENT_LENGTH": str(MOST_BYTES + 1)})
    assert told.status_code == 422
    assert "too large" in told.json["error"]
    assert not list((tmp_path / "kept").iterdir())


def test_bytes_are_counted_while_they_are_written(drops, tmp_path, monkeypatch):
    """With chunked encoding no length is announced; a file that did not fit frees its space for the next try."""
    monkeypatch.setattr(http_server, "MOST_BYTES", 1000)
    drops = Client(Uploads(inside, tmp_path / "kept", Options()))
    chunked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
    sent = [
        ("1/a", 600, 200), ("1/b", 600, 422), ("2/b", 600, 422), ("1/b", 400, 200),
        ("2/c", 1, 422), ("1/a", 500, 200), ("1/c", 100, 200),
    ]  # fmt: skip
    for name, size, status in sent:
        body = {"input_stream": BytesIO(bytes(size)), "environ_overrides": chunked}
        assert drops.put(f"/drop/{name}", headers=SENT, **body).status_code == status, name
    assert sum(path.stat().st_size for path in (tmp_path / "kept" / "1").iterdir()) == 1000


class SlowBody(BytesIO):
    """A body that takes a while, so that another upload can begin meanwhile."""

    def read(self, *count):
        time.sleep(0.2)
        return super().read(*count)


def test_uploads_at_the_same_time_share_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(http_server, "MOST_BYTES", 1000)
    app = Uploads(inside, tmp_path, Options())

    def put(name):
        chunked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
        body = {"input_stream": SlowBody(bytes(600)), "environ_overrides": chunked}
        return Client(app).put(f"/drop/1/{name}", headers=SENT, **body).status_code

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(put, "abcd")) == [200, 422, 422, 422]


def test_a_name_that_no_disk_takes_is_refused(drops, tmp_path):
    """The first has 150 characters, each of which takes two bytes on the disk."""
    for refusal in (
        drops.put(f"/drop/1/{'é' * 150}", data=b"x", headers=SENT),
        drops.put(f"/drop/{'1' * 300}/a", data=b"x", headers=SENT),
        drops.post(f"/drop/{'1' * 300}", headers=SENT),
    ):
        assert refusal.status_code == 422
        assert set(refusal.json) == {"error", "hint"}


def test_a_folder_that_has_gone_is_an_error(drops, tmp_path):
    """A program that cleans /tmp may have deleted the folder."""
    (tmp_path / "kept").rmdir()
    assert drops.put("/drop/1/a", data=b"x", headers=SENT).status_code == 422
    assert drops.post("/drop/1", headers=SENT).status_code == 422


@pytest.mark.parametrize("length", ["abc", "-1", "1e3", "\xb2", "0x10", "1 2"])
def test_a_length_that_is_no_number_is_a_bad_request(drops, length):
    environ = {"CONTENT_LENGTH": length}
    assert drops.put("/drop/1/a", headers=SENT, environ_overrides=environ).status_code == 400


def test_sets_are_counted(drops):
    answers = [drops.put(f"/drop/{i}/a", data=b"x", headers=SENT).status_code for i in range(17)]
    assert answers == [200] * 16 + [422]


@pytest.mark.browser
def test_a_file_is_dropped_in_a_browser(site, page):
    """The browser shows the answer about a snapshot that was dragged onto the page."""
    [snapshot] = sorted((FIXTURES / "oom_2ranks" / "memory_snapshot").glob("*_exit/rank1*"))[:1]
    page.goto(site)
    page.wait_for_selector("#verdict")
    handle = page.evaluate_handle(
        """([name, bytes]) => {
            const data = new DataTransfer();
            data.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], name));
            return data;
        }""",
        [snapshot.name, b64encode(snapshot.read_bytes()).decode()],
    )
    page.dispatch_event("body", "drop", {"dataTransfer": handle})
    page.wait_for_url(re.compile(r"/open/\d+/$"))
    page.wait_for_selector("#verdict")
    assert "ran out of memory" in page.locator("#verdict").inner_text()
    page.click("nav a:has-text('Memory')")
    page.wait_for_selector("#timeline .scatterlayer .trace")
    assert "/open/" in page.url


@pytest.fixture
def secret(tmp_path):
    """Fixture: a source file of this machine that a page must not show."""
    path = tmp_path / "home" / "secret.py"
    path.parent.mkdir()
    path.write_text("PASSWORD = 'hunter2'\n")
    return path


def sources(name, at):
    """Return the content of the source page for a line, in a run of the fixtures."""
    run = discover(FIXTURES / name)
    return str(source.layout(served_run(run, room_for(run), Options()), {"at": at}))


def test_lines_that_only_stacks_name_have_their_source():
    """The source page shows files of any frame of a dump or snapshot, not only those in the report."""
    assert "def main" in sources("stuck_2ranks", "trainer/__main__.py:28")
    assert "is not on this machine" in sources("stuck_2ranks", "trainer/config/load.py:1")


def test_what_is_dropped_is_no_way_to_a_source(drops, secret):
    """A dropped snapshot may name any file as the source of an allocation, so its files are not shown."""
    recorded = FIXTURES / "oom_2ranks" / "memory_snapshot" / "iteration_5" / "rank0_memory_snapshot.pickle.gz"
    snapshot = pickle.loads(gzip.decompress(recorded.read_bytes()))
    for entry in snapshot["device_traces"][0]:
        for frame in entry.get("frames", []):
            frame["filename"] = str(secret)
    drop(drops, "1", {"rank0_memory_snapshot.pickle": pickle.dumps(snapshot)})
    shown = asked(drops, "/open/1/", "source", f"?at={secret}:1")
    assert "Dropped files show no source" in shown
    assert "hunter2" not in shown


def asked(client, prefix, page, search):
    """Return the server's answer to a browser that opens a page."""
    [turn] = [one for one in client.get(f"{prefix}_dash-dependencies").json if "page.children" in one["output"]]
    outputs = [
        dict(zip(("id", "property"), one.split("."), strict=True)) for one in turn["output"].strip(".").split("...")
    ]
    values = {"pathname": f"{prefix}{page}", "search": search}
    inputs = [one | {"value": values.get(one["property"])} for one in turn["inputs"]]
    state = [one | {"value": {"own": {}, "steps": ""} if one["id"] == "window" else None} for one in turn["state"]]
    body = {"output": turn["output"], "outputs": outputs, "inputs": inputs, "state": state}
    return client.post(f"{prefix}_dash-update-component", json=body | {"changedPropIds": ["address.pathname"]}).text


def test_a_token_guards_every_door(oom, tmp_path):
    """Pages, callbacks, documents, assets, uploads and opened files are refused without the token."""
    client = Client(assembled(served_run(oom, room_for(oom), Options()), tmp_path, DOOR))
    for path in (
        "/",
        "/report.json",
        "/_dash-layout",
        "/_dash-dependencies",
        "/assets/workbench.js",
        "/open/a/",
        "/drop/1",
    ):
        assert client.get(path).status_code == 403, path
        assert client.get(f"/f0lder{path}").status_code == 403, path
    assert client.post("/f0lder/_dash-update-component", json={}).status_code == 403
    assert client.put("/f0lder/drop/1/a", data=b"x", headers=SENT).status_code == 403
    assert client.get("/?token=s3cret").status_code == 303
    assert client.get("/f0lder/report.json").status_code == 200


def test_the_policy_allows_no_code_but_our_own(oom):
    """Scripts are files of ours or known by their digest; styles may be inline, because Plotly writes them so."""
    client = make_app(served_run(oom, room_for(oom), Options())).server.test_client()
    headers = client.get("/").headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'"
    allowed = policy["script-src"].split()
    assert allowed[0] == "'self'"
    assert all(one.startswith("'sha256-") for one in allowed[1:])
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    assert policy["form-action"] == "'none'"


def test_first_requests_that_come_together_get_the_same_page():
    """Dash prepares its page during the first request; requests at the same time once got it without some scripts."""
    stuck = discover(FIXTURES / "stuck_2ranks")
    served, interval = served_run(stuck, room_for(stuck), Options()), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            client, together = make_app(served).server.test_client, Barrier(10)

            def first(client=client, together=together):
                together.wait()
                return re.findall(r'(?:href|src)="[^"]+"', client().get("/").text)

            with ThreadPoolExecutor(10) as pool:
                loaded = {tuple(asked.result()) for asked in [pool.submit(first) for _ in range(10)]}
            assert len(loaded) == 1
    finally:
        sys.setswitchinterval(interval)
