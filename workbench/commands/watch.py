"""Implement `workbench watch`: show a job while it runs, in the terminal app or as lines of text."""

from pathlib import Path

from analyzers.errors import Exit, InputError
from workbench.command_options.options import on_terminal
from workbench.commands.analyse import open_folder
from workbench.console import note
from workbench.watch.follow import follow


def watch(folder: Path, *, tui: bool) -> Exit:
    """Show the job that writes to `folder` until it ends or the user leaves, and return the exit status.

    The folder may be created later. With `tui`, the terminal app shows the job, if this process runs on a terminal.
    Otherwise lines of text are printed.

    Raises:
        InputError: `folder` is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: not a folder", "give the folder that the job writes to, its job.dump_folder")
    if not folder.exists():
        note(f"waiting for {folder}, which does not exist yet  (Ctrl+C leaves)")
    if not tui or not on_terminal():
        follow(folder)
        return Exit.OK
    from workbench.tui.terminal_app import run_app
    from workbench.watch.app import WatchApp

    return open_folder(folder) if run_app(WatchApp(folder)) else Exit.OK
