"""Write the generated parts of the documentation again, from the program itself: `python docs/refresh.py`.

These are the reference of commands, settings and keys, the skill for agents, the output of commands in tutorials, and
the manual pages in `share`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from man_pages import man_pages
from trainer.config.schema import default, flag, options
from workbench.cli import app
from workbench.commands.capabilities import Command, Parameter, capabilities, skill
from workbench.tui.app import WorkbenchApp
from workbench.tui.panes.hang import HangPane
from workbench.tui.panes.memory import MemoryPane
from workbench.tui.panes.steps import StepsPane
from workbench.tui.panes.trace import TracePane
from workbench.tui.widgets.common import CURSOR_KEYS, SEARCH_KEYS
from workbench.tui.widgets.gantt import DeviceMemoryChart, Gantt
from workbench.tui.widgets.trees import StackTree
from workbench.tui.widgets.view_switcher import VIEW_KEYS
from workbench.watch.app import WatchApp

KEYS: dict[str, list[Any]] = {
    "Everywhere": WorkbenchApp.BINDINGS,
    "Lists, tables and trees": [*CURSOR_KEYS, *SEARCH_KEYS],
    "Views below a chart": VIEW_KEYS,
    "Memory": MemoryPane.BINDINGS,
    "Hang": HangPane.BINDINGS,
    "Stacks of a hang": StackTree.BINDINGS,
    "Trace": TracePane.BINDINGS,
    "Events of a trace": Gantt.BINDINGS,
    "Memory of a trace": DeviceMemoryChart.BINDINGS,
    "Steps": StepsPane.BINDINGS,
    "workbench watch": WatchApp.BINDINGS,
}
CHARACTERS = {
    "plus": "+", "equals_sign": "=", "minus": "-", "left_square_bracket": "[", "right_square_bracket": "]",
    "comma": ",", "full_stop": ".", "slash": "/", "question_mark": "?",
}  # fmt: skip
DOCS = Path(__file__).parent
CONSOLE = re.compile(r"```console\n\$ workbench ([^|\n]+?)(?: \| head -(\d+))?\n.*?```", re.DOTALL)
GENERATED = "<!-- Made by docs/refresh.py. -->"


def pages() -> Iterator[tuple[Path, str]]:
    """Yield (path, expected text) of each page that depends on the program."""
    yield DOCS / "reference" / "commands.md", commands()
    yield DOCS / "reference" / "settings.md", settings()
    yield DOCS / "reference" / "keys.md", keys()
    agents = DOCS / "reference" / "agents.md"
    body = re.sub(r"\A---.*?---\n", "", skill(), flags=re.DOTALL).strip()
    yield agents, agents.read_text().partition("<!-- skill -->")[0] + f"<!-- skill -->\n\n{body.replace('# ', '## ')}\n"
    for page in [DOCS / "index.md", *sorted((DOCS / "tutorials").glob("*.md"))]:
        yield page, CONSOLE.sub(lambda found: shown(found[1], found[2]), page.read_text())
    yield from man_pages()


def shown(words: str, lines: str | None) -> str:
    """Return a Markdown block with a command and the first lines that it prints; `lines` is None for all of them."""
    environment = os.environ | {"COLUMNS": "110", "NO_COLOR": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "workbench", *words.split()],
        capture_output=True, text=True, check=True, env=environment, cwd=DOCS.parent,
    )  # fmt: skip
    kept = ended.stdout.rstrip().splitlines()[: int(lines) if lines else None]
    head = f" | head -{lines}" if lines else ""
    return "\n".join([f"```console\n$ workbench {words}{head}", *(line.rstrip() for line in kept), "```"])


def commands() -> str:
    parts = ["# Commands", GENERATED]
    for command in capabilities(app).data.commands:
        parts += [f"## {command.name}", command.summary, parameters(command)]
        if command.schema:
            parts.append(f"With `--json` it prints `workbench.{command.schema}/1`.")
    return "\n\n".join(part for part in parts if part) + "\n"


def parameters(command: Command) -> str:
    """Return the arguments and options of a command as a Markdown table."""
    heads = ["| option | type | |", "|---|---|---|"]
    return "\n".join([*heads, *map(row, command.parameters)]) if command.parameters else ""


def row(one: Parameter) -> str:
    spelled = ", ".join(f"`{text}`" for text in one.flags) or f"`{one.name.upper()}`"
    kind = ", ".join(one.choices) or one.type
    usual = f" Default: `{one.default}`." if one.default else ""
    return f"| {spelled} | {kind} | {one.help.replace('|', '&#124;')}{usual} |"


def settings() -> str:
    """Return the Markdown page with every key of the trainer's configuration."""
    parts, section = ["# Settings of the trainer", GENERATED], ""
    parts.append("In TOML they stand in their section; on the command line they are `--section.key value`.")
    for key, option in options().items():
        if (head := key.partition(".")[0]) != section:
            section = head
            parts += [f"## {section}"]
        parts.append(f"`{flag(option)}`, default `{default(option)}`\n:   {option.help}")
    return "\n\n".join(parts) + "\n"


def keys() -> str:
    """Return the Markdown page with every key of the terminal apps, by the place where it works."""
    parts = ["# Keys", GENERATED, "`?` shows those of the place that you are in."]
    for place, bindings in KEYS.items():
        rows = "\n".join(f"| {spelled(binding.key)} | {binding.description} |" for binding in bindings)
        parts += [f"## {place}", f"| key | does |\n|---|---|\n{rows}"]
    return "\n\n".join(parts) + "\n"


def spelled(key: str) -> str:
    """Return Markdown for keys, with the character on the key in place of a name such as `plus`."""
    return ", ".join(f"`{CHARACTERS.get(one, one)}`" for one in key.split(","))


if __name__ == "__main__":
    for path, text in pages():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
