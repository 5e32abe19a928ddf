"""The options that commands share, spelled once."""

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a report is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


class FailOn(StrEnum):
    """The severity from which on a finding makes the exit status 1."""

    WARNING = "warning"
    ERROR = "error"


class Scheduler(StrEnum):
    """Who starts the processes of a job."""

    LOCAL = "local"
    SLURM = "slurm"
    TORCHX = "torchx"


READING, SHOWING = "Reading", "Showing"

Paths = Annotated[list[Path], typer.Argument(help="Files, folders or runs.", show_default=False)]
MaybePaths = Annotated[list[Path] | None, typer.Argument(help="Files, folders or runs.", show_default=False)]
LIVE = "A job that hangs now"
LiveRun = Annotated[
    Path | None,
    typer.Option(help="Ask its ranks on this machine for dumps first.", rich_help_panel=LIVE, show_default=False),
]
Pids = Annotated[
    list[int] | None,
    typer.Option(help="The same, by a process of the job. May be repeated.", rich_help_panel=LIVE, show_default=False),
]
OnePath = Annotated[Path, typer.Argument(help="A run folder, or an artefact in it.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(help="The folder that the job writes to.", show_default=False)]
Rank = Annotated[int | None, typer.Option(help="Only this rank.", rich_help_panel=READING, show_default=False)]
Step = Annotated[int | None, typer.Option(help="Only this step.", rich_help_panel=READING, show_default=False)]
Jobs = Annotated[
    int | None, typer.Option(help="Files read at once.", rich_help_panel=READING, show_default="processor cores", min=1)
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither use nor fill the cache.", rich_help_panel=READING)]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        help="Memory all readers together may take, such as 4GiB.", rich_help_panel=READING, show_default="by file size"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the JSON document.", rich_help_panel=SHOWING)]
Printed = Annotated[
    Format | None, typer.Option("--format", help="Print in this format.", rich_help_panel=SHOWING, show_default=False)
]
OutFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write to this file.", rich_help_panel=SHOWING, show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.", rich_help_panel=SHOWING)]
NoTui = Annotated[bool, typer.Option("--no-tui", help="Print, also on a terminal.", rich_help_panel=SHOWING)]
Web = Annotated[bool, typer.Option("--web", help="Open the dashboard on the same view.", rich_help_panel=SHOWING)]
Breakdown = Annotated[
    bool, typer.Option("--breakdown", help="Memory in a table: segments, holders, tensors, layers, overhead.")
]
Export = Annotated[
    Path | None,
    typer.Option(
        help="Write all ranks of the last recorded step to this .json[.gz], for Perfetto.", show_default=False
    ),
]
CriticalPath = Annotated[
    bool, typer.Option("--critical-path", help="What the last step consists of, along what held up what; what-if.")
]
PeakTflops = Annotated[
    float | None,
    typer.Option(
        help="What one device can do in 16 bits, dense, for the utilisation (MFU).",
        rich_help_panel=READING,
        show_default="by its name",
        min=1e-6,
    ),
]
WhatIf = Annotated[
    str | None,
    typer.Option(
        help="Memory with changes, such as batch=2x,seq=4096,dp_shard=8,ac=full,optim_dtype=bfloat16.",
        show_default=False,
    ),
]
FailOnOption = Annotated[
    FailOn | None,
    typer.Option(help="Exit with 1 if a finding is this severe.", rich_help_panel=SHOWING, show_default=False),
]
Gated = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        help="Exit with 1 if a finding is this severe, or if a measure is worse: step_time>3%,memory,loss>1%.",
        metavar="[warning|error|MEASURE[>LIMIT]],...",
        rich_help_panel=SHOWING,
        show_default=False,
    ),
]
Config = Annotated[str | None, typer.Option(help="A TOML file, or a registry function with --module.")]
Module = Annotated[str | None, typer.Option(help="A model of the trainer, whose --config is a function.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]


@dataclass(frozen=True)
class Reading:
    """What is read, and how."""

    rank: Rank = None
    jobs: Jobs = None
    no_cache: NoCache = False
    max_memory: MaxMemory = None


@dataclass(frozen=True)
class StepReading(Reading):
    """The same, of artefacts that belong to a step."""

    step: Step = None


@dataclass(frozen=True)
class TraceReading(StepReading):
    """The same, of profiler traces."""

    peak_tflops: PeakTflops = None


@dataclass(frozen=True)
class Document:
    """How an answer is printed."""

    as_json: Json = False
    printed: Printed = None
    output: OutFile = None
    force: Force = False
    debug: Debug = False

    @property
    def form(self) -> Format | None:
        """The format that was asked for."""
        return Format.JSON if self.as_json else self.printed


@dataclass(frozen=True)
class Showing(Document):
    """How an answer is shown: as a document, or by the terminal app or the dashboard."""

    no_tui: NoTui = False
    web: Web = False

    @property
    def interactive(self) -> bool:
        """Whether the terminal app opens: on a terminal, when nothing else was asked for."""
        return not (self.form or self.output or self.no_tui or self.web) and on_terminal()


def on_terminal() -> bool:
    """Whether the terminal app can run: it reads keys from stdin and draws on stderr."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


@dataclass(frozen=True)
class Model:
    """Whose configuration."""

    config: Config = None
    module: Module = None
