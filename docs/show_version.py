"""Show the version of the program below each page of the documentation; MkDocs runs this (`hooks` in mkdocs.yml)."""

import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    config.copyright = f"workbench {project['version']}"
    return config
