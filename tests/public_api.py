"""List all that users rely on, one line each: Python names, commands, exit statuses, documents and ids of findings.

python tests/public_api.py               record additions in tests/api/public_api.json
python tests/public_api.py --breaking    also removals and changes, which docs/deprecation.md allows
"""

import ast
import dataclasses
import enum
import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from finding_ids import PACKAGES as PACKAGES_OF_PROJECT
from finding_ids import finding_ids

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "api" / "public_api.json"
ROOMS = ("memory", "hangs", "traces", "steps", "logs", "tokens", "incident", "compare", "parity")
NAMES = {
    "analyzers.report": ("Report", "Verdict", "Finding", "Evidence", "Input", "Severity", "Status", "json_schema"),
    "analyzers.run": ("Artefact", "Run", "Kind", "discover", "ANALYSED", "TIMED"),
    "analyzers.store": ("Options",),
    "analyzers.errors": ("Exit", "WorkbenchError", "InputError", "HostileInput", "LimitExceeded", "MissingExtra"),
    "analyzers.memory.views": ("timeline",),
}
"""{module: its public names}, for modules without `__all__` that the page on the library shows."""
PACKAGES = ("workbench.recorders", *(f"analyzers.{room}" for room in ROOMS))
"""Packages whose `__all__` is public."""
SCHEMA = re.compile(r"workbench\.[a-z_]+/\d+")
REQUIRED = "required"


def public_api() -> dict[str, str]:
    """Return {what users rely on: its form}."""
    lines = (*python_names(), *command_line(), *documents(), *ids_and_versions())
    return dict(sorted(lines))


def python_names() -> Iterator[tuple[str, str]]:
    modules = {name: import_module(name) for name in (*NAMES, *PACKAGES)}
    for name, module in modules.items():
        for public in NAMES.get(name) or module.__all__:
            yield from described(f"python {name}.{public}", getattr(module, public))


def described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the lines on a function, class or constant."""
    if isinstance(value, enum.EnumMeta):
        yield name, "enum"
        yield from ((f"{name}.{member.name}", repr(member.value)) for member in value)
    elif isinstance(value, type):
        yield name, "class " + ", ".join(base.__name__ for base in value.__mro__[1:-1] if base.__name__ != "Generic")
        yield from members(name, value)
    elif callable(value):
        yield from signature_of(name, value)
    elif isinstance(value, tuple | frozenset):
        yield name, type(value).__name__
        yield from ((f"{name} {element}", "element") for element in value)
    else:
        yield name, type(value).__name__


def members(name: str, kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class, and the methods and properties that it or a base of ours defines."""
    fields: dict[str, Any] = {}
    if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct):
        fields = get_type_hints(kind)
        yield from ((f"{name}.{field}", spelled(hint)) for field, hint in fields.items() if not field.startswith("_"))
    if dataclasses.is_dataclass(kind):
        yield from parameters(f"{name}()", inspect.signature(kind))
    ours = [base for base in kind.__mro__ if base.__module__.partition(".")[0] in ("analyzers", "workbench")]
    for member, value in {key: value for base in reversed(ours) for key, value in vars(base).items()}.items():
        if member.startswith("_") or member in fields:
            continue
        if isinstance(value, property):
            yield f"{name}.{member}", "property"
        elif callable(getattr(kind, member)):
            yield from signature_of(f"{name}.{member}", getattr(kind, member))


def signature_of(name: str, function: Any) -> Iterator[tuple[str, str]]:
    signature = inspect.signature(function)
    yield f"{name}()", f"-> {spelled(signature.return_annotation)}"
    yield from parameters(f"{name}()", signature)


def parameters(name: str, signature: inspect.Signature) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a call: those that may be given by position have their position in their form."""
    for position, one in enumerate(signature.parameters.values()):
        if one.name == "self":
            continue
        place = "by name" if one.kind is one.KEYWORD_ONLY else f"{one.kind.description}, {position}"
        needed = one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        yield f"{name} {one.name}", f"{REQUIRED if needed else 'optional'}, {place}: {spelled(one.annotation)}"


def spelled(annotation: Any) -> str:
    """Return a type as text, without the modules in which its parts are defined."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)


def command_line() -> Iterator[tuple[str, str]]:
    """Yield the commands with their arguments, options and choices, the exit statuses, and the kinds of artefacts."""
    from workbench.cli import app
    from workbench.commands.capabilities import capabilities

    data = capabilities(app).data
    yield from ((f"exit status {name}", str(code)) for name, code in data.exit_codes.items())
    yield from ((f"kind {kind}", "kind") for kind in data.kinds)
    yield from ((f"memory category {name}", "category") for name in data.categories)
    for command in data.commands:
        yield f"workbench {command.name}", f"--json: {command.schema}" if command.schema else "command"
        for one in command.parameters:
            form = f"{REQUIRED if one.required else 'optional'}, {one.type}{', repeated' if one.multiple else ''}"
            for spelling in one.flags or [one.name.upper()]:
                option = f"workbench {command.name} {spelling}"
                yield option, form + (f", default {one.default}" if one.default else "")
                yield from ((f"{option}={choice}", "choice") for choice in one.choices)


def documents() -> Iterator[tuple[str, str]]:
    """Yield each value of each JSON document by its path, with its type; the parts of all documents only once."""
    from analyzers.report import json_schema
    from workbench.commands.capabilities import document_type
    from workbench.rooms import FACES, data_type

    # A document that has another one inside names it, and does not repeat it.
    whole = {data_type(name).__name__: name for name in FACES}
    for name in FACES:
        schema = json_schema(document_type(name))
        definitions = schema["$defs"]
        head = definitions[schema["$ref"].rpartition("/")[2]]
        common = {key: value for key, value in head["properties"].items() if key != "data"}
        inside = tuple(title for title, other in whole.items() if other != name)
        yield from values("document *", {"properties": common}, definitions, inside)
        yield from values(f"document {name}: data", head["properties"]["data"], definitions, inside)


def values(
    path: str, schema: dict[str, Any], definitions: dict[str, Any], above: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield (path, type) of every value below `path`; `above` names the definitions that are not described again."""
    for option in schema.get("anyOf", [schema]):
        if reference := option.get("$ref"):
            name = reference.rpartition("/")[2]
            if name not in above:
                yield from values(path, definitions[name], definitions, (*above, name))
            continue
        yield from ((f"{path}={text}", "value") for text in option.get("enum", []) if text is not None)
        for key, inner in option.get("properties", {}).items():
            yield f"{path}.{key}", type_of(inner, definitions)
            yield from values(f"{path}.{key}", inner, definitions, above)
        for mark, key in (("[]", "items"), (".*", "additionalProperties")):
            if isinstance(inner := option.get(key), dict):
                yield from values(f"{path}{mark}", inner, definitions, above)


def type_of(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the JSON types of a value, such as `integer|null`."""
    kinds = []
    for option in schema.get("anyOf", [schema]):
        name = option.get("$ref", "").rpartition("/")[2]
        if name.endswith("Data"):
            kinds.append(f"the data of a document, {name}")
            continue
        target = definitions[option["$ref"].rpartition("/")[2]] if "$ref" in option else option
        kinds.append(target.get("type") or ("string" if "enum" in target else "any"))
    return "|".join(sorted(set(kinds)))


def ids_and_versions() -> Iterator[tuple[str, str]]:
    """Yield the ids of findings, and the names of the JSON documents of commands with their versions."""
    yield from ((f"finding {name}", "id") for name in finding_ids())
    for package in PACKAGES_OF_PROJECT:
        for path in (ROOT / package).rglob("*.py"):
            if "recorders" not in path.parts:
                yield from versions_in(path)


def versions_in(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the names of JSON documents that a module spells out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SCHEMA.fullmatch(node.value):
            yield f"document {node.value}", "version"


def breaks(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return a sentence for each thing that programs and people rely on and that was removed or changed."""
    gone = [f"removed: {name}  ({form})" for name, form in before.items() if name not in now]
    changed = [f"changed: {name}  ({before[name]} -> {now[name]})" for name in before.keys() & now.keys()
               if before[name] != now[name]]  # fmt: skip
    needed = [f"now required: {name}" for name in now.keys() - before.keys()
              if now[name].startswith(REQUIRED) and re.split(r" (?=\S+$)", name)[0] in owners(before)]  # fmt: skip
    return [*gone, *sorted(changed), *sorted(needed)]


def owners(names: dict[str, str]) -> set[str]:
    """Return the calls and commands that have parameters: `python analyzers.run.discover()`, `workbench hang`."""
    return {name for name in names if name.endswith("()") or name.startswith("workbench ")}


def additions(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return sorted(now.keys() - before.keys())


def recorded() -> dict[str, str]:
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {}


def main() -> None:
    before, now = recorded(), public_api()
    if "--breaking" not in sys.argv and (broken := breaks(before, now)):
        sys.exit(
            "\n".join([*broken, "nothing recorded: docs/deprecation.md says when this is allowed; then --breaking"])
        )
    RECORDED.write_text(json.dumps(now, indent=0, ensure_ascii=False) + "\n")
    print(*(f"added: {name}" for name in additions(before, now)), sep="\n")


if __name__ == "__main__":
    main()
