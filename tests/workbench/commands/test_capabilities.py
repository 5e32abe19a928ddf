"""The output of `workbench capabilities` is complete and true: it lists every command and option, and no others."""

import json
import re

import pytest
from command_line import run

from workbench.cli import app
from workbench.commands.capabilities import capabilities, skill
from workbench.rooms import FACES

OPTION = re.compile(r"(?<![\w-])(--?[a-zA-Z][\w-]*)")


@pytest.fixture(scope="module")
def by_command():
    return {command.name: command for command in capabilities(app).data.commands}


def helped(name):
    """Return the options in the `--help` text of a command."""
    shown = run(*name.split(), "--help", env={"NO_COLOR": "1", "COLUMNS": "300", "PATH": "/usr/bin"}).stdout
    rows = [line.strip(" │") for line in shown.splitlines() if line.strip(" │").startswith(("-", "*"))]
    return {flag for row in rows for flag in OPTION.findall(re.split(r"\s{3,}", row)[0])} - {"-h", "--help"}


@pytest.mark.parametrize("name", ["inspect", "hang", "serve", "report", "config explain"])
def test_options_are_those_of_the_help(by_command, name):
    assert helped(name) <= {flag for one in by_command[name].parameters for flag in one.flags}


def test_documents_have_a_schema(by_command):
    """Every command with `--json` names its document, and `workbench schema` knows it."""
    speaking = {
        name for name, command in by_command.items() if any("--json" in one.flags for one in command.parameters)
    }
    documents = {name: command.schema for name, command in by_command.items() if command.schema}
    assert set(documents) <= speaking
    assert {*documents.values()} <= {*FACES, "config"}
    assert documents["inspect"] == "incident"


def test_the_skill_asks_only_what_can_be_asked(by_command):
    """Each line `workbench ...` in the instructions for agents is a command with options that exist."""
    lines = re.findall(r"`workbench ([^`]+)`|^workbench (.+)$", skill(), re.MULTILINE)
    asked = [" ".join(pair).strip() for pair in lines]
    assert len(asked) > 10
    for line in asked:
        name = next(
            name for name in sorted(by_command, key=len, reverse=True) if line == name or line.startswith(f"{name} ")
        )
        flags = {flag for one in by_command[name].parameters for flag in one.flags}
        assert set(OPTION.findall(line.removeprefix(name))) <= flags, line


def test_the_document_is_json():
    shown = run("capabilities", "--json")
    document = json.loads(shown.stdout)
    assert document["schema"] == "workbench.capabilities/1"
    assert document["data"]["exit_codes"]["input"] == 3
