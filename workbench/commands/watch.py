"""`workbench watch`: show a job while it runs, in the terminal app or as lines."""

from pathlib import Path

from analyzers.errors import Exit, InputError
from workbench.command_options.options import on_terminal
from workbench.commands.analyse import open_folder
from workbench.watch.follow import follow


def watch(folder: Path, *, tui: bool) -> Exit:
    """Show a job until it ends or the user leaves; with `tui`, in the terminal app if stdout is a terminal.

    Raises:
        InputError: There is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", "give the folder that the job writes to, its job.dump_folder")
    if not tui or not on_terminal():
        follow(folder)
        return Exit.OK
    from workbench.tui.app_errors import run_app
    from workbench.watch.app import WatchApp

    return open_folder(folder) if run_app(WatchApp(folder)) else Exit.OK
