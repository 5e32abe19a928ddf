"""The collector saves what its node says of NCCL and of GPUs, and nothing where there is nothing to ask."""

import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from workbench.recorders.hang import node_health
from workbench.recorders.hang.node_health import RECORD_BYTES, gpu_errors, ras_status, save

STATUS = (Path(__file__).parents[2] / "analyzers" / "hangs" / "node_texts" / "ras_dead.txt").read_bytes()
HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def no_log(tmp_path, monkeypatch):
    """The log of this machine's kernel is nobody's business."""
    monkeypatch.setattr(node_health, "KERNEL_LOG", tmp_path / "none")


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


def test_errors_of_gpus_are_read_from_the_log_of_the_kernel_whatever_the_order_of_its_times(tmp_path, monkeypatch):
    """Each read returns one record: here each fills a buffer. Processors take times from clocks of their own."""
    now_s = time.monotonic()
    records = [
        f"6,1,{int(1e6 * (now_s - 900))},-;NVRM: Xid (PCI:0000:1b:00): 31, of an earlier job\n",
        f"4,2,{int(1e6 * (now_s + 20))},-;NVRM: Xid (PCI:0000:b3:00): 79, GPU is lost.\n SUBSYSTEM=pci\n",
        f"6,3,{int(1e6 * (now_s + 10))},c;usb 1-1: new device\n",
        "NVRM: no record\n",
        "6,4,soon,-;NVRM: no time\n",
        f"4,5,{int(1e6 * (now_s + 10))},-;NVRM: Xid (PCI:0000:b3:00): 45, \xff\n",
    ]
    log = tmp_path / "kmsg"
    log.write_bytes(b"".join(record.encode("latin-1").ljust(RECORD_BYTES) for record in records))
    monkeypatch.setattr(node_health, "KERNEL_LOG", log)
    lines = gpu_errors(time.time()).decode().splitlines()
    assert [line.partition("] ")[2] for line in lines] == [
        "NVRM: Xid (PCI:0000:b3:00): 79, GPU is lost.",
        "NVRM: Xid (PCI:0000:b3:00): 45, \N{REPLACEMENT CHARACTER}",
    ]
    assert all(re.match(r"\[\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ", line) for line in lines)
    assert gpu_errors(time.time() + 1000) == b""
