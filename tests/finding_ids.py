"""List the ids of all findings that the code can produce, from the calls that make findings.

An id in the code is a text, or an expression such as `f"logs.{cause.kind}"`. Of each expression `FAMILIES` says which
ids it can produce.
"""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from analyzers.failures.startup import STARTUP
from analyzers.steps.model import Problem
from analyzers.traces.advice import REPORTED_ELSEWHERE
from analyzers.traces.model import OpportunityKind

ROOT = Path(__file__).parents[1]
PACKAGES = ("analyzers", "workbench", "trainer")
FAMILIES: dict[str, tuple[str, ...] | str] = {
    "f'hang.{cause.kind}'": "hangs.model.HangClass",
    "f'hang.{culprit.kind}'": "hangs.model.HangClass",
    "finding_id(case)": "case.facts.LogClass",
    "f'tokens.{problem}'": "tokens.problems.Problem",
    "f'bisect.{one.cause}'": "parity.model.Cause",
    "f'compare.{change.measure}'": "steps.diff.Measure",
    "f'compare.{name}_undecided'": "steps.diff.Measure",
    "f'compare.memory.{verb}'": ("compare.memory.grew", "compare.memory.shrank"),
    "f'steps.{overhead.part}_time'": "steps.goodput.Part",
    "f'{Problem.NONFINITE_LOSS.finding_id}_recovered'": ("steps.nonfinite_loss_recovered",),
    "f'trace.{row.kind}'": tuple(f"trace.{kind}" for kind in OpportunityKind if kind not in REPORTED_ELSEWHERE),
    "f'{analyzer}.unreadable'": tuple(f"{room}.unreadable" for room in ("hang", "logs", "memory", "steps", "trace")),
    "f\"config.{('refused' if report.refused else 'unknown')}.{report.key}\"": (
        "config.refused.KEY",
        "config.unknown.KEY",
    ),
}
"""{expression that makes an id: the ids that it can produce, or the enum of the values that are filled into it}.

`KEY` stands for a key of the trainer's configuration.
"""

HELPERS = {"note": 0, "account_finding": 1, "finding": 0}
"""{function that makes a finding of an id that it is given: the position of the id among its arguments}."""


def finding_ids() -> set[str]:
    """Return the ids of all findings that the code can produce."""
    literal, made = ids_in_code()
    return literal | {name for expression in made for name in family(expression)}


def family(expression: str) -> Iterator[str]:
    """Yield the ids that an expression of `FAMILIES` can produce."""
    members = FAMILIES[expression]
    if isinstance(members, tuple):
        yield from members
        return
    module, _, name = members.rpartition(".")
    values = getattr(import_module(f"analyzers.{module}"), name)
    if expression == "finding_id(case)":
        yield from log_ids(values)
    else:
        first, _, last = expression.removeprefix("f'").removesuffix("'").partition("{")
        yield from (f"{first}{value}{last.partition('}')[2]}" for value in values)


def log_ids(classes: type) -> Iterator[str]:
    """Yield the ids of findings on logs; that of a job that did not start ends with the reason."""
    yield from (f"logs.{value}" for value in classes)
    yield from (f"logs.startup.{reason}" for reason in STARTUP)


def ids_in_code() -> tuple[set[str], set[str]]:
    """Return the ids that the code spells out, and the expressions of all other ids."""
    literal, made = set(), set()
    for module in modules():
        for node in module.ids():
            texts = module.texts(node)
            literal.update(texts)
            if not texts:
                made.add(ast.unparse(node))
    return literal, made


def modules() -> Iterator["Module"]:
    """Yield all modules of the project that make findings."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if "inding" in source or "note(" in source:
                yield Module(ast.parse(source))


class Module:
    """A module of the project, of which the ids of findings are listed."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.imported = {
            name.name: node.module
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for name in node.names
        }
        self.parameters = {
            arg.arg
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name in HELPERS
            for arg in node.args.args
        }

    def ids(self) -> Iterator[ast.expr]:
        """Yield the expression of the id in each call that makes a finding."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id == "Finding":
                    found = next(word.value for word in node.keywords if word.arg == "id")
                    # The id that a helper is given is listed where the helper is called.
                    if not (isinstance(found, ast.Name) and found.id in self.parameters):
                        yield found
                elif node.func.id in HELPERS and len(node.args) > HELPERS[node.func.id]:
                    first = node.args[HELPERS[node.func.id]]
                    if "." in (self.texts(first) or [""])[0]:
                        yield first

    def texts(self, node: ast.expr) -> list[str]:
        """Return the ids that an expression spells out; empty if they are made from values."""
        if isinstance(node, ast.Constant):
            return [str(node.value)]
        if isinstance(node, ast.Name) and node.id in self.constants:
            return [str(self.constants[node.id])]
        if isinstance(node, ast.Name) and node.id in self.imported:
            return [str(getattr(import_module(self.imported[node.id]), node.id))]
        if isinstance(node, ast.IfExp):
            return [text for branch in (node.body, node.orelse) for text in self.texts(branch)]
        if isinstance(node, ast.Attribute) and node.attr == "finding_id":
            return [problem_id(node.value)]
        return []


def problem_id(member: ast.expr) -> str:
    """Return the id of the finding on a member of `steps.model.Problem`."""
    assert isinstance(member, ast.Attribute)
    return Problem[member.attr].finding_id
