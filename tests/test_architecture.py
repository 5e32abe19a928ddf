"""Packages import each other only in the allowed directions, also at run time."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "numpy", "pandas", "textual", "dash", "plotly"}
FACES = {"torch", "typer", "rich", "textual", "dash", "plotly", "trainer", "workbench"}


def modules_after(code: str) -> set[str]:
    """Return the top-level packages that are loaded after `code` has run in a new interpreter."""
    ending = "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    child = subprocess.run(
        [sys.executable, "-c", code + ending], capture_output=True, text=True, check=True, cwd=ROOT, timeout=240
    )
    return set(child.stdout.split())


def test_the_command_line_is_light():
    """`--help` imports nothing heavy."""
    assert not HEAVY & modules_after("import workbench.cli")


def test_a_trace_as_text_waits_for_no_tables():
    """Printing a trace imports neither pandas nor the rooms of memory and hangs, with all that these import."""
    recorded = ROOT / "tests" / "fixtures" / "traces"
    code = (
        "import contextlib, sys\n"
        f"sys.argv = ['workbench', 'trace', {str(recorded)!r}, '--no-tui']\n"
        "from workbench.__main__ import main\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(*(f'loaded:{name}' for name in sys.modules))"
    )
    assert not {"loaded:pandas", "loaded:analyzers.memory", "loaded:analyzers.hangs"} & modules_after(code)


def test_the_analyzers_need_no_face_and_no_torch():
    """Every module of the analyzers loads without torch and without a user interface."""
    code = (
        "import importlib, pkgutil, analyzers\n"
        "for found in pkgutil.walk_packages(analyzers.__path__, 'analyzers.'):\n"
        "    if not found.name.endswith('__main__'): importlib.import_module(found.name)"
    )
    assert not FACES & modules_after(code)


def test_the_config_schema_needs_no_torch():
    """The launcher reads a configuration without waiting seconds for torch."""
    assert "torch" not in modules_after("import trainer.config")


def test_the_recorders_import_only_the_standard_library_torch_and_themselves():
    """Any script can import them, whatever else is installed and whatever modules lie beside the script."""
    allowed = {*sys.stdlib_module_names, "torch"}
    for path in (ROOT / "workbench" / "recorders").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign = [name for name in names if not name.startswith("workbench.recorders")]
            assert {name.partition(".")[0] for name in foreign} <= allowed, path


def test_no_string_is_left_outside_of_its_expression():
    """An implicitly joined string without parentheses loses its second line; ruff's B018 does not look at strings."""
    lost = []
    for path in (path for house in ("analyzers", "trainer", "workbench") for path in (ROOT / house).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Expr(value=ast.JoinedStr()) | ast.Expr(value=ast.Constant(value=str())):
                    is_docstring = lines[node.lineno - 1].strip().startswith(('"""', 'r"""'))
                    lost += [] if is_docstring else [f"{path}:{node.lineno}"]
    assert not lost


def test_tests_keep_away_from_the_users_cache(tmp_path_factory):
    assert Path(os.environ["WORKBENCH_CACHE"]).is_relative_to(tmp_path_factory.getbasetemp())
