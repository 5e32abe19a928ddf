"""A bug in the terminal app ends the command like any other internal bug."""

import pytest

from workbench.console import guarded
from workbench.tui.terminal_app import TerminalApp, run_app


class Broken(TerminalApp[None]):
    def on_mount(self):
        secret = "hunter2"  # noqa: F841  # a local that a traceback with locals would show
        raise ZeroDivisionError


def test_a_bug_in_the_app_ends_in_two_lines(capsys):
    with pytest.raises(SystemExit) as ended, guarded():
        run_app(Broken(), headless=True)
    assert ended.value.code == 70
    printed = capsys.readouterr()
    assert "internal error: ZeroDivisionError" in printed.err
    assert "hunter2" not in printed.err + printed.out
