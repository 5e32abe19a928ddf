"""Convert a report to a document: text, JSON, Markdown or a standalone HTML page; all have the same tables."""

from analyzers.report import Report, Verdict
from analyzers.run import Run
from workbench.command_options.options import Format


def below_answer(verdict: Verdict) -> list[tuple[str, str]]:
    """Return (label, text) of what every face shows below an answer: what was tested, where to read on, what lacked."""
    lines = [("Tested", "; ".join(verdict.tested))] if verdict.tested else []
    lines += [("About", f"workbench explain {verdict.failure}")] if verdict.failure else []
    return [*lines, *(("Missing", gap) for gap in verdict.missing)]


def render(report: Report[object], wanted: Format, run: Run, *, full: bool = True) -> str:
    """Return the report on `run` as a document in the format `wanted`, ending with a newline.

    Text on a terminal has only what fits on a screen unless `full` is set; other documents are always whole.
    """
    # Each format imports its own libraries, so that `--json` does not wait for Rich or NumPy.
    if wanted is Format.JSON:
        return report.json().decode() + "\n"
    if wanted is Format.MARKDOWN:
        from workbench.present.html import markdown_document as document
    elif wanted is Format.HTML:
        from workbench.present.html import document
    else:
        from workbench.present.text import document as text_document

        return text_document(report, run, full=full)
    return document(report, run)
