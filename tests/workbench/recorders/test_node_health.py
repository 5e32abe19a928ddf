"""The collector saves what its node says of NCCL and of GPUs, and nothing where there is nothing to ask."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from workbench.recorders.hang import node_health
from workbench.recorders.hang.node_health import KERNEL_LOG, gpu_errors, kernel_records, ras_status, save

STATUS = (Path(__file__).parents[2] / "analyzers" / "hangs" / "node_texts" / "ras_dead.txt").read_bytes()
HOST = socket.gethostname()


@pytest.fixture
def ras(monkeypatch):
    """A server that answers as a RAS thread does: it sends the status, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = []

        def answer():
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(100))
                connection.sendall(STATUS)

        threading.Thread(target=answer, daemon=True).start()
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{server.getsockname()[1]}")
        yield asked


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder of programs, in front of all others."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def program(folder, script):
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_ras_and_devices_are_saved(tmp_path, ras, tools):
    program(tools, 'test "$1" = -q && echo "Attached GPUs : 1"')
    save(tmp_path / "run", tmp_path / "run" / "dumps" / "set_2", time.time())
    saved = tmp_path / "run" / "dumps" / "set_2" / f"nccl_ras_{HOST}.txt"
    assert saved.read_bytes() == STATUS
    assert ras == [b"verbose status\n"]
    assert (tmp_path / "run" / "health" / f"nvidia_smi_{HOST}.txt").read_text() == "Attached GPUs : 1\n"


def test_a_node_without_any_of_them_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_RAS_ADDR", "127.0.0.1:1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(node_health, "KERNEL_LOG", tmp_path / "none")
    save(tmp_path / "run", tmp_path / "run" / "dumps", time.time())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["nonsense", "localhost:", "127.0.0.1:99999", "[::1"])
def test_a_wrong_address_of_ras_keeps_the_others_from_nothing(tmp_path, monkeypatch, tools, address):
    program(tools, "echo here")
    monkeypatch.setenv("NCCL_RAS_ADDR", address)
    save(tmp_path / "run", tmp_path / "run" / "dumps", time.time())
    assert (tmp_path / "run" / "health" / f"nvidia_smi_{HOST}.txt").read_text() == "here\n"


def test_a_device_that_hangs_is_given_up(tmp_path, monkeypatch, tools):
    program(tools, "exec sleep 60")
    monkeypatch.setattr(node_health, "SMI_TIMEOUT_S", 0.5)
    began = time.monotonic()
    save(tmp_path / "run", tmp_path / "run" / "dumps", time.time())
    assert time.monotonic() - began < 30
    assert not list(tmp_path.rglob("nvidia_smi_*"))


def test_a_silent_ras_is_given_up(monkeypatch):
    monkeypatch.setattr(node_health, "RAS_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("NCCL_RAS_ADDR", f"127.0.0.1:{server.getsockname()[1]}")
        assert ras_status() == b""


@pytest.mark.skipif(not os.access(KERNEL_LOG, os.R_OK), reason="the kernel's log cannot be read")
def test_the_log_of_this_kernel_is_read():
    times = [uptime_s for uptime_s, _ in kernel_records(KERNEL_LOG)]
    assert times == sorted(times)
    assert all(0 <= each <= time.monotonic() + 1 for each in times)
    assert gpu_errors(time.time() + 1000) == b""
