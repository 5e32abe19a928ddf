"""Add the pages of the catalogue of failures to the documentation; MkDocs runs this (`hooks` in mkdocs.yml)."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from workbench.present.failure_page import CHAPTERS, FINDINGS, MEASURED, chapter, page


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    rows = []
    for domain, title in CHAPTERS.items():
        entries = chapter(domain)
        text = f"# {title}\n\n" + "\n".join(page(entry, 2) for entry in entries)
        files.append(File.generated(config, f"failures/{domain}.md", content=text))
        rows.append(f"| [{title}]({domain}.md) | {len(entries)} |")
    for room, title in MEASURED.items():
        found = [entry for entry in FINDINGS if entry.id.startswith(f"{room}.")]
        text = f"# {title}\n\n" + "\n".join(page(entry, 2) for entry in found)
        files.append(File.generated(config, f"failures/findings_{room}.md", content=text))
        rows.append(f"| [{title}](findings_{room}.md) | {len(found)} |")
    intro = (
        "# Known failures\n\nWhat the workbench knows of each failure: what it is, how it shows, what rules it out and"
        " what to do. `workbench explain ID` prints the same.\n\n| chapter | failures |\n|---|---|\n"
    )
    files.append(File.generated(config, "failures/index.md", content=intro + "\n".join(rows) + "\n"))
    return files
