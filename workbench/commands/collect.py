"""Implement `workbench collect`: receive the files of a run from its nodes, or send the files of this node."""

from pathlib import Path

from analyzers.errors import Exit
from analyzers.nodes.received import NODES
from workbench.collect.addresses import parse_address
from workbench.collect.receiver import Receiver
from workbench.collect.running import node_name, receive, send
from workbench.collect.token import read_token
from workbench.console import note
from workbench.errors import UsageProblem


def collect(folder: Path, listen: str | None, to: str | None, token_file: Path | None, nodes: int) -> Exit:
    """Receive files into `folder` at the address `listen`, or send the files of `folder` to the address `to`.

    `nodes` is the number of nodes that will send files; 0 if unknown.

    Raises:
        WorkbenchError: The addresses or the token are wrong, or the receiver cannot be reached at the end.
    """
    if (listen is None) == (to is None):
        hint = "--listen HOST:PORT receives files into FOLDER, --to HOST:PORT sends those of FOLDER"
        raise UsageProblem("collect: give either --listen or --to", hint)
    token, address = read_token(token_file), parse_address(listen or to or "")
    if listen is not None:
        text = f"receiving into {folder / NODES} at {address.url}  (Ctrl+C stops it)"
        receive(Receiver(folder, nodes), address, token, lambda: note(text))
        return Exit.OK
    note(f"sending {folder} to {address.url} as node {node_name()}")
    send(folder, address, token)
    note(f"all files of {folder} were sent to {address.url}")
    return Exit.OK
