"""A job while it runs: what is going on, and why it hangs or died as soon as that is known."""

from pathlib import Path

from analyzers.errors import Exit, InputError


def watch(folder: Path, *, tui: bool) -> Exit:
    """Show a job until it ends or nobody wants to see more; on a terminal in an app of its own.

    Raises:
        InputError: There is no such folder.
    """
    from workbench.commands.analyse import explore
    from workbench.options import on_terminal
    from workbench.watch.follow import follow

    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder", "give the folder that the job writes to, its job.dump_folder")
    if not tui or not on_terminal():
        follow(folder)
        return Exit.OK
    from workbench.watch.app import WatchApp

    if WatchApp(folder).run():
        return explore(folder)
    return Exit.OK
