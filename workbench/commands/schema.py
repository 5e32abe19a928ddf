"""Implement `workbench schema`: print the JSON Schema of a document that commands print with `--json`."""

from typing import Any

import msgspec

from analyzers.report import Report, json_schema
from workbench.errors import UsageProblem
from workbench.rooms import FACES, data_type


def describe(name: str | None) -> str:
    """Return the JSON Schema of the document `name`; without a name, the list of all names."""
    if name is None:
        return "\n".join(FACES)
    if name not in FACES:
        raise UsageProblem(f"no document {name}", f"choose {', '.join(FACES)}")
    return msgspec.json.format(msgspec.json.encode(json_schema(document_type(name))), indent=2).decode()


def document_type(name: str) -> type[Report[object]]:
    generic: Any = Report
    found: type[Report[object]] = generic[data_type(name)]
    return found
