"""Nodes that share nothing: each has its own network, host name and processes, and a folder of its own (Linux, root).

All addresses exist only inside of the namespaces that a `Cluster` makes: a switch with one cable to each node.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

NETWORK = "10.77.0."
NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--mount")


class Cluster:
    """Nodes n0, n1, ... with the addresses 10.77.0.1, 10.77.0.2, ..., below `folder`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.names = folder, [f"n{number}" for number in range(nodes)]
        self._holders: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._inside: dict[str, int] = {}
        hosts = folder / "hosts"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{self.address(name)} {name}" for name in self.names]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")

    def __enter__(self) -> Self:
        self._switch = self._hold("switch")
        self._on_switch("ip link add br0 type bridge && ip link set br0 up")
        for name in self.names:
            self._plug(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._inside):
            self.kill(name)
        for holder in self._holders:
            holder.kill()
            holder.wait()
        for process in self._started:
            process.wait()

    def address(self, name: str) -> str:
        """Return the IPv4 address of a node."""
        return f"{NETWORK}{self.names.index(name) + 1}"

    def home(self, name: str) -> Path:
        """Return the folder of a node, which no other node uses."""
        return self.folder / name

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start a process on a node, in the node's folder."""
        own = {
            "TMPDIR": str(self.home(name) / "tmp"),
            "GLOO_SOCKET_IFNAME": "eth0",
            "XDG_CACHE_HOME": str(self.home(name) / "cache"),
        }
        enter = ["nsenter", "--target", str(self._inside[name]), *NAMESPACES, f"--wdns={self.home(name)}"]
        process = subprocess.Popen(
            [*enter, "--", *command],
            env={**os.environ, **own, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def kill(self, name: str) -> None:
        """Kill all processes of a node at once, as when its power fails."""
        # The first process of a namespace takes all others with it.
        os.kill(self._inside.pop(name), signal.SIGKILL)

    def cut(self, name: str) -> None:
        """Pull the cable of a node: packets vanish, and nobody is told."""
        self._on_switch(f"ip link set {name} down")

    def _plug(self, name: str) -> None:
        (self.home(name) / "tmp").mkdir(parents=True)
        self._inside[name] = self._hold(name)
        self._on_switch(
            f"ip link add {name} type veth peer name eth0 netns {self._inside[name]}"
            f" && ip link set {name} master br0 up"
        )
        inside = f"ip addr add {self.address(name)}/24 dev eth0 && ip link set eth0 up && ip link set lo up"
        self._in(self._inside[name], inside)

    def _hold(self, name: str) -> int:
        """Make the namespaces of a node, and return the id of the process that holds them."""
        first = f"hostname {name} && mount --bind {self.folder / 'hosts'} /etc/hosts && exec sleep infinity"
        command = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", first]
        holder = subprocess.Popen(command)
        self._holders.append(holder)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            pids = children.read_text().split()
            if pids and Path(f"/proc/{pids[0]}/comm").read_text().strip() == "sleep":
                return int(pids[0])
            time.sleep(0.05)
        raise RuntimeError(f"no namespaces for {name}")

    def _on_switch(self, script: str) -> None:
        self._in(self._switch, script)

    def _in(self, pid: int, script: str) -> None:
        subprocess.run(["nsenter", "--target", str(pid), "--net", "--", "sh", "-c", script], check=True)
