"""The bytes of a timeline's events, read back as the browser does."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from werkzeug.test import Client

from analyzers.rooms import room_for
from analyzers.run import Kind, discover
from analyzers.store import Options
from analyzers.traces.slices import slices
from workbench.web.app import make_app
from workbench.web.pages.trace_timeline import event_bytes
from workbench.web.served_run import served_run

FIXTURES = Path(__file__).parents[3] / "fixtures"


@pytest.fixture(scope="module")
def slow():
    """Fixture: a run with traces of two ranks."""
    return discover(FIXTURES / "straggler_data_2ranks")


def decoded(content):
    """Return the header and the columns of an answer."""
    length, zero = struct.unpack("<II", content[:8])
    header, offset, columns = json.loads(content[8 : 8 + length]), -(-(8 + length) // 8) * 8, {}
    for name, kind in header["columns"]:
        columns[name] = np.frombuffer(content, f"<{kind}", header["n"], offset)
        offset += -(-columns[name].nbytes // 8) * 8
    assert (zero, offset) == (0, len(content))
    return header, columns


def test_columns_are_read_back_as_they_were_written(slow):
    artefact = slow.of(Kind.TRACE)[0]
    for most in (1 << 20, 300):
        found = slices(artefact, None, None, most)
        header, columns = decoded(event_bytes(found))
        assert header["n"] == len(found.start)
        assert (header["events"], header["joined"]) == (found.events, found.joined_ns)
        assert (columns["start"] == found.start).all()
        assert (columns["dur"] == found.dur).all()
        assert (columns["row"] == found.row).all()
        assert header["names"][columns["name"][0]] == found.names[found.name[0]]
        assert ("count" in columns) == (most == 300)
        assert [line[3:] for line in header["lines"]] == [[line.first, line.last] for line in found.lines]


def test_the_browser_asks_for_events_once(slow):
    client = Client(make_app(served_run(slow, room_for(slow), Options())).server)
    answer = client.get("/events/0.bin")
    header, columns = decoded(answer.data)
    assert header["joined"] == 0
    assert client.get("/events/0.bin", headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304
    part, fewer = decoded(client.get("/events/0.bin?from=1000000&to=3000000").data)
    assert 0 < len(fewer["start"]) < len(columns["start"])
    assert part["n"] == len(fewer["start"])
    short = client.get("/events/0.bin", headers={"Accept-Encoding": "gzip"})
    assert short.headers["Content-Encoding"] == "gzip"
    assert len(short.data) < len(answer.data) / 2
    assert gzip.decompress(short.data) == answer.data
    path, pieces = decoded(client.get("/path/0.bin").data)
    assert path["lines"][0][0] == "critical path"
    assert pieces["dur"].sum() > 0
    for bad in ("/events/9.bin", "/path/9.bin"):
        assert client.get(bad).status_code == 404
    assert client.get("/events/0.bin?from=9&to=3&x=<b>").status_code == 200
