"""Artefacts at URLs: copied once, whole or not at all, and never outside of the cache."""

import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import command_line
import fsspec
import pytest

from analyzers.cache import set_limit
from analyzers.errors import InputError
from workbench.remote.file_system import is_same_host
from workbench.remote.local_paths import local_path
from workbench.remote.urls import is_url, scrubbed, without_credentials

RECORDING = b"rank 0: step 3, and more"


@pytest.fixture
def memory():
    """Fixture: an empty file system in memory."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def copies(cache):
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file() and "files" in path.parts}


def fetched(url, **bounds):
    """Return the path of the copies of what is at a web address; `bounds` replace some of what a server may cost.

    Another process makes them: fsspec starts a thread, after which this process could fork no more readers.
    """
    code = (
        "from workbench.remote.local_paths import local_path; from workbench.remote.file_system import BOUNDS;"
        f"vars(BOUNDS).update({bounds}); print(local_path({url!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise InputError(ended.stderr, "")
    return Path(ended.stdout.strip())


def test_the_answer_is_that_of_the_local_files(fixtures, serve, cache):
    site = serve(fixtures / "oom_2ranks")
    near = json.loads(command_line.run("inspect", fixtures / "oom_2ranks", "--json").stdout)
    ended = command_line.run("inspect", site.url, "--json")
    far = json.loads(ended.stdout)
    assert far["verdict"] == near["verdict"]
    assert [finding["id"] for finding in far["findings"]] == [finding["id"] for finding in near["findings"]]
    assert "downloaded" in ended.stderr
    site.requests.clear()
    again = command_line.run("inspect", site.url, "--json")
    assert again.stdout == ended.stdout
    assert site.downloads() == []


def test_only_what_changed_is_downloaded_again(serve, cache, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for rank in range(3):
        (run / f"rank_{rank}.log").write_bytes(RECORDING)
    site = serve(run)
    copied = fetched(site.url)
    (run / "rank_0.log").unlink()
    (run / "rank_1.log").write_bytes(RECORDING * 2)
    site.requests.clear()
    assert fetched(site.url) == copied
    assert site.downloads() == ["/rank_1.log"]
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == {
        "rank_1.log": RECORDING * 2,
        "rank_2.log": RECORDING,
    }


def test_a_single_file_keeps_its_name_and_time(memory, cache):
    memory.pipe("/run/iteration_4/rank1_trace.json", b"{}")
    path = local_path("memory://run/iteration_4/rank1_trace.json")
    assert (path.name, path.read_bytes()) == ("rank1_trace.json", b"{}")
    assert path.stat().st_mtime == pytest.approx(memory.created("/run/iteration_4/rank1_trace.json").timestamp())


def test_checkpoints_weights_and_hidden_files_stay_where_they_are(memory, cache):
    for name in ("checkpoint/step-1/a.json", "model.safetensors", ".cache", "dumps/p2p_0.bin", "dumps/rank_0"):
        memory.pipe(f"/run/{name}", b"x")
    folder = local_path("memory://run")
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "dumps/p2p_0.bin",
        "dumps/rank_0",
    }


def test_names_in_an_archive_cannot_lead_out_of_the_cache(cache, tmp_path):
    archive = tmp_path / "there" / "run.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        for name in (
            "../out.log",
            "../../../../out.log",
            "/out.log",
            "a/../../out.log",
            "a/rank_0.log",
            "a\\..\\b.log",
        ):
            file.writestr(name, "hello")
    before = {path for path in tmp_path.rglob("*") if cache not in path.parents}
    folder = local_path(f"zip::file://{archive}")
    assert (folder / "a" / "rank_0.log").read_text() == "hello"
    assert {path for path in tmp_path.rglob("*") if cache not in path.parents} == before | {cache}
    assert all(path.startswith("remote/") and "/files/" in path for path in copies(cache))


def test_a_page_that_links_elsewhere_is_not_followed(serve, cache, tmp_path):
    (tmp_path / "site" / "run").mkdir(parents=True)
    (tmp_path / "site" / "outside.log").write_text("outside")
    (tmp_path / "site" / "run" / "rank_0.log").write_text("inside")
    links = (
        "../",
        "/",
        "//127.0.0.1:1/x/",
        "./",
        "?all",
        "../outside.log",
        "%2e%2e/outside.log",
        "a/b/c.log",
        "rank_0.log",
    )
    (tmp_path / "site" / "run" / "index.html").write_text("".join(f'<a href="{link}">x</a>' for link in links))
    folder = fetched(serve(tmp_path / "site").url + "run/")
    assert (folder / "rank_0.log").read_text() == "inside"
    assert not [path for path in cache.rglob("*") if path.is_file() and b"outside" in path.read_bytes()]
    assert not (cache.parent / "outside.log").exists()


def test_a_page_without_end_is_not_read_to_its_end(serve, cache, tmp_path):
    (tmp_path / "rank_0.log").write_bytes(RECORDING)
    site = serve(tmp_path)
    site.endless.add("/")
    command = [sys.executable, "-m", "workbench", "inspect", site.url, "--no-tui"]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)

    assert ended.returncode == 3
    assert "a page of more than 16.0 MiB" in ended.stderr
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert largest < 1 << 20, "KiB"


@pytest.mark.parametrize(
    ("kind", "bounds", "why"),
    [
        ("slow", {"page_s": 1}, "TimeoutError"),
        ("slow", {"request_s": 1}, "Timeout"),
        ("silent", {"silent_s": 1}, "Timeout"),
    ],
)
def test_a_page_that_never_ends_is_given_up(kind, bounds, why, serve, cache, tmp_path):
    (tmp_path / "rank_0.log").write_bytes(RECORDING)
    site = serve(tmp_path)
    getattr(site, kind).add("/")
    began = time.monotonic()

    with pytest.raises(InputError, match=why):
        fetched(site.url, **bounds)

    assert time.monotonic() - began < 25
    assert not copies(cache)


def test_a_listing_that_goes_on_is_given_up(serve, cache, tmp_path):
    for number in range(50):
        (tmp_path / f"step_{number}").mkdir()
    site = serve(tmp_path)
    site.delay_s = 0.2

    with pytest.raises(InputError, match="not all files are listed after 1 s"):
        fetched(site.url, listing_s=1)

    assert len(site.requests) < 40


def test_a_download_that_ends_early_is_no_file(serve, cache, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank_0.log").write_bytes(RECORDING)
    site = serve(tmp_path / "run")
    site.cut["/rank_0.log"] = 5
    site.release.set()
    with pytest.raises(InputError):
        fetched(site.url)
    assert not copies(cache)
    site.cut.clear()
    assert (fetched(site.url) / "rank_0.log").read_bytes() == RECORDING


def test_a_killed_download_is_continued(serve, cache, tmp_path):
    (tmp_path / "run").mkdir()
    for rank in range(12):
        (tmp_path / "run" / f"rank_{rank:02}.log").write_bytes(RECORDING)
    site = serve(tmp_path / "run")
    site.cut["/rank_05.log"] = 5
    process = subprocess.Popen([sys.executable, "-m", "workbench", "inspect", site.url, "--no-tui"])
    while sum(path.endswith(".log") for path in copies(cache)) < 11:  # all but the one that waits
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    site.cut.clear()
    site.requests.clear()
    assert sorted(path.name for path in fetched(site.url).iterdir()) == [f"rank_{rank:02}.log" for rank in range(12)]
    assert "/rank_05.log" in site.downloads()
    # Of those that were not quite written when the process was killed, there may be one for each thread.
    assert len(site.downloads()) < 6
    site.requests.clear()
    fetched(site.url)
    assert not site.downloads()


def test_no_more_is_downloaded_than_the_cache_may_hold(memory, cache):
    memory.pipe("/run/rank_0.log", b"x" * 5000)
    set_limit(cache, 4000)
    with pytest.raises(InputError, match="the cache may hold"):
        local_path("memory://run")
    assert not copies(cache)


def test_runs_that_were_used_longest_ago_are_deleted_first(memory, cache):
    set_limit(cache, 12_000)
    paths = []
    for number in range(3):
        memory.pipe(f"/run{number}/rank_0.log", b"x" * 5000)
        paths.append(local_path(f"memory://run{number}"))
    assert [path.exists() for path in paths] == [False, True, True]
    shown = command_line.run("cache").stdout
    assert "copies" in shown
    command_line.run("cache", "--clear")
    assert not copies(cache)


def test_without_cache_nothing_stays(fixtures, serve, cache):
    ended = command_line.run("hang", serve(fixtures / "stuck_2ranks").url, "--no-tui", "--no-cache")
    assert ended.returncode == 0, ended.stderr
    assert not any(cache.rglob("*"))


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_missing_package_is_named_with_the_command_that_installs_it():
    ended = command_line.run("inspect", "s3://AKIA:se/cret@bucket/run?X-Amz-Signature=secret", "--no-tui", "--debug")
    assert ended.returncode == 3
    assert "hint: run `pip install 's3fs'`" in ended.stderr
    assert "cret" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    "url", ["nosuch://bucket/run", "http://me:secret@127.0.0.1:1/run/?token=secret", "memory://none"]
)
def test_what_cannot_be_read_is_refused_with_a_hint_and_without_credentials(url, cache):
    ended = command_line.run("inspect", url, "--no-tui", "--debug")
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "error: " in ended.stderr
    assert "hint: " in ended.stderr
    assert "secret" not in ended.stderr


def test_file_urls_are_read_in_place(fixtures, cache):
    assert local_path(f"file://{fixtures}/oom_2ranks") == fixtures / "oom_2ranks"
    assert not cache.exists()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("https://host:8080/a@b", "https://host:8080/a@b"),
        ("ftp://me:pw@host/run", "ftp://host/run"),
        ("s3://KEY:se/cr+et@bucket/run", "s3://bucket/run"),
        ("zip::https://token@host/a.zip?sig=1", "zip::https://host/a.zip"),
        ("abfs://container@account.dfs.core.windows.net/run", "abfs://container@account.dfs.core.windows.net/run"),
    ],
)
def test_urls_are_shown_without_credentials(text, shown):
    assert is_url(text)
    assert without_credentials(text) == shown


def test_messages_of_libraries_are_shown_without_credentials():
    assert scrubbed("403: https://me:pw@host/run?X-Amz-Signature=1f token=abc") == "403: https://host/run?... token=..."


@pytest.mark.parametrize("path", ["outputs", "/data/a:b", "rank_0::x", "C:/x", "./s3:/x"])
def test_paths_are_no_urls(path):
    assert not is_url(path)
    assert os.fspath(local_path(path)) == os.path.normpath(path)


def test_a_redirect_to_another_host_is_not_followed(serve, cache, tmp_path):
    """Not even to another port of the same machine: services that only this machine reaches answer there."""
    (tmp_path / "run").mkdir()
    (tmp_path / "inside").mkdir()
    (tmp_path / "run" / "rank_0.log").write_bytes(RECORDING)
    (tmp_path / "run" / "rank_1.log").write_bytes(RECORDING)
    (tmp_path / "inside" / "rank_1.log").write_text("a secret")
    site, inside = serve(tmp_path / "run"), serve(tmp_path / "inside")
    site.redirects = {"/rank_1.log": f"{inside.url}rank_1.log"}
    ended = command_line.run("inspect", site.url, "--json")
    assert ended.returncode == 0, ended.stderr
    assert copies(cache) == {path for path in copies(cache) if path.endswith("rank_0.log")}
    assert "redirects to another host, which is not followed" in ended.stderr
    ended = command_line.run("inspect", f"{site.url}rank_1.log", "--json")
    assert ended.returncode == 3
    assert inside.requests == []


def test_a_redirect_within_a_host_is_followed(serve, cache, tmp_path):
    (tmp_path / "rank_0.log").write_bytes(RECORDING)
    (tmp_path / "rank_1.log").touch()
    site = serve(tmp_path)
    site.redirects = {"/rank_1.log": "/rank_0.log"}
    assert fetched(f"{site.url}rank_1.log").read_bytes() == RECORDING


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        ("http://a/x", "http://a/y", True),
        ("http://a/x", "https://a/y", True),
        ("https://a/x", "http://a/y", False),
        ("http://a:80/x", "http://a/y", True),
        ("http://a/x", "http://a:8080/y", False),
        ("http://a/x", "http://b/y", False),
        ("http://a/x", "file:///etc/passwd", False),
        ("http://a/x", "http://a@b/y", False),
    ],
)
def test_what_counts_as_the_same_host(here, there, same):
    assert is_same_host(urlsplit(here), urlsplit(there)) is same
