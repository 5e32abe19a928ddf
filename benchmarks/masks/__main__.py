"""Score `workbench tokens` on data sets with a planted mistake and on data sets without one.

    python -m benchmarks.masks [--part tuned|kept|all] [NAME ...]

A third of the cases, chosen by a hash of the name, is kept back: no rule is tuned on it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from analyzers import tokens
from analyzers.errors import WorkbenchError
from analyzers.report import Severity
from analyzers.store import Options
from benchmarks.masks.cases import Case, Maker, cases


def answer(case: Case, folder: Path) -> tuple[set[str], str]:
    """Return the ids of the faults that the command names for a case, and its verdict or its error."""
    maker = Maker(case, folder, folder / "tokenizers")
    case.write(maker)
    options = dict(zip(case.options[::2], case.options[1::2], strict=True))
    try:
        files = tokens.find_files([maker.path], maker.tokenizer_folder if case.tokenizer else None)
        length = int(options["--seq-len"]) if options else None
        report = tokens.analyze(files, Options(cache=False), seq_len=length)
    except WorkbenchError as error:
        return {"refused"}, f"{error.message} | {error.hint}"
    return {f.id for f in report.findings if f.severity is not Severity.INFO}, report.verdict.sentence


def judge(case: Case) -> tuple[str, str]:
    """Return right, missed or false, and what the command said."""
    with tempfile.TemporaryDirectory() as folder:
        ids, sentence = answer(case, Path(folder))
    said = f"{', '.join(sorted(ids)) or 'no fault'}: {sentence}"
    if case.mistake is None:
        return ("false" if ids else "right"), said
    return ("right" if case.mistake in ids else "missed"), said


def main() -> int:
    parser = argparse.ArgumentParser(description="Score workbench tokens on planted mask mistakes.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--part", choices=["tuned", "kept", "all"], default="tuned")
    asked = parser.parse_args()
    counts: dict[str, int] = {}
    for case in cases():
        if asked.names and not any(name in case.name for name in asked.names):
            continue
        if asked.part != "all" and case.is_kept != (asked.part == "kept"):
            continue
        try:
            outcome, said = judge(case)
        except ModuleNotFoundError as error:
            outcome, said = "skipped", f"{error.name} is not installed"
        key = f"{'clean' if case.mistake is None else 'planted'} {outcome}"
        counts[key] = counts.get(key, 0) + 1
        if outcome != "right" or asked.names:
            print(f"{outcome:8}{case.name:36}{case.mistake or 'clean':28}{said[:260]}", flush=True)
    print(counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
