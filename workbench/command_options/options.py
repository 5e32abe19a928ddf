"""The options that several commands share, each defined once; related options form a dataclass."""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

INCIDENTS = (
    "healthy",
    "oom",
    "leak",
    "stuck",
    "stuck_sleep",
    "stuck_gil",
    "skip",
    "mismatch_shape",
    "mismatch_type",
    "kill",
    "deadlock",
    "straggler",
    "straggler_data",
    "straggler_gc",
    "nan",
)
MODELS = ("llama3", "llama4", "qwen3", "qwen3_moe", "deepseek_v3")
PLANNED_DEVICES = ("a100", "h100", "h200", "b200", "mi300x", "cpu")


def one_of(*values: str) -> Callable[[str], list[str]]:
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


class FailOn(StrEnum):
    """The values of `--fail-on`: a command fails if its report has a finding of at least this severity."""

    WARNING = "warning"
    ERROR = "error"


class Scheduler(StrEnum):
    """The program that starts the processes of a job: this launcher itself (local), or a cluster's scheduler."""

    LOCAL = "local"
    SLURM = "slurm"
    TORCHX = "torchx"
    KUBERNETES = "kubernetes"


INPUT, OUTPUT = "Input", "Output"
_WRITTEN = "Files or folders that a job wrote, or their URLs (s3://, gs://, https://, ...)."
Paths = Annotated[list[str], typer.Argument(help=_WRITTEN, show_default=False)]
MaybePaths = Annotated[list[str] | None, typer.Argument(help=_WRITTEN, show_default=False)]
_LIVE = "A job that hangs right now"
LiveRun = Annotated[
    Path | None,
    typer.Option(
        help="The folder of the job: ask its ranks on this machine for dumps first.",
        rich_help_panel=_LIVE,
        show_default=False,
    ),
]
Pids = Annotated[
    list[int] | None,
    typer.Option(
        help="The same, by the process ID of the launcher or of a rank; py-spy reads ranks without recorders.",
        rich_help_panel=_LIVE,
        show_default=False,
    ),
]
OnePath = Annotated[
    str,
    typer.Argument(help="The folder of a run, or a file in it, or its URL.", show_default=False),
]
ConfigSource = Annotated[Path, typer.Argument(help="A TOML file, or the folder of a run.", show_default=False)]
ProcessesPerNode = Annotated[
    int | None, typer.Option(help="Number of processes on each node.", show_default="devices, else 2", min=1)
]
Nodes = Annotated[int, typer.Option(help="Number of nodes.", min=1)]
RunFolder = Annotated[Path, typer.Argument(help="The folder that the job writes to.", show_default=False)]
Rank = Annotated[int | None, typer.Option(help="Read only this rank.", rich_help_panel=INPUT, show_default=False)]
Step = Annotated[int | None, typer.Option(help="Read only this step.", rich_help_panel=INPUT, show_default=False)]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Number of files to read at the same time.", rich_help_panel=INPUT, show_default="processor cores", min=1
    ),
]
NoCache = Annotated[
    bool,
    typer.Option("--no-cache", help="Read the files again, and store nothing in the cache.", rich_help_panel=INPUT),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        help="Limit on the memory of all reader processes together, such as 4GiB.",
        rich_help_panel=INPUT,
        show_default="by file size",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Read the files on the workers of the Dask cluster whose scheduler is at this address.",
        rich_help_panel=INPUT,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the JSON document.", rich_help_panel=OUTPUT)]
Printed = Annotated[
    Format | None, typer.Option("--format", help="Print in this format.", rich_help_panel=OUTPUT, show_default=False)
]
OutFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write to this file.", rich_help_panel=OUTPUT, show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file.", rich_help_panel=OUTPUT)]
NoTui = Annotated[
    bool, typer.Option("--no-tui", help="Print text instead of opening the terminal app.", rich_help_panel=OUTPUT)
]
Full = Annotated[
    bool,
    typer.Option("--full", help="Print all findings and tables on a terminal, too.", rich_help_panel=OUTPUT),
]
Web = Annotated[bool, typer.Option("--web", help="Open the web dashboard at the same view.", rich_help_panel=OUTPUT)]
Breakdown = Annotated[
    bool, typer.Option("--breakdown", help="Add tables of the memory: segments, owners, tensors, layers, overhead.")
]
Export = Annotated[
    Path | None,
    typer.Option(
        help="Write the traces of all ranks, for the last recorded step, to this .json or .json.gz file for Perfetto.",
        show_default=False,
    ),
]
CriticalPath = Annotated[
    bool,
    typer.Option(
        "--critical-path", help="Add the critical path of the last step, and what shortening each part would save."
    ),
]
PeakTflops = Annotated[
    float | None,
    typer.Option(
        help="Peak of one device in dense 16-bit TFLOP/s, to compute the utilisation (MFU).",
        rich_help_panel=INPUT,
        show_default="by the device's name",
        min=1e-6,
    ),
]
ColumnMap = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="Which column of another trainer's log is what, such as loss=train/nll or step_time_ms=took."
        " May be repeated.",
        metavar="QUANTITY=COLUMN",
        rich_help_panel=INPUT,
        show_default="by name",
    ),
]
WhatIf = Annotated[
    str | None,
    typer.Option(
        help="Add the memory after changes such as batch=2x,seq=4096,dp_shard=8,ac=full,optim_dtype=bfloat16.",
        show_default=False,
    ),
]
Prove = Annotated[
    bool,
    typer.Option(
        "--prove",
        help="Run the job again: with the best advice against a failed allocation, to compare predicted with measured"
        " memory; or from the last checkpoint before a NaN or a spike of the loss, to find where it began. The command"
        " comes from you, after --; one that the run folder names is printed, and started only if you say yes.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="With --prove: start the printed command without a question.")]
FailOnOption = Annotated[
    FailOn | None,
    typer.Option(
        help="Exit with status 1 if a finding is at least this severe.", rich_help_panel=OUTPUT, show_default=False
    ),
]
FailOnMeasures = Annotated[
    str | None,
    typer.Option(
        "--fail-on",
        help="Exit with status 1 if a finding is at least this severe, or a measure got worse: step_time>3%,memory.",
        metavar="[warning|error|MEASURE[>LIMIT]],...",
        autocompletion=one_of(*FailOn),
        rich_help_panel=OUTPUT,
        show_default=False,
    ),
]
Config = Annotated[str | None, typer.Option(help="A TOML file; with --module the name of a registry function.")]
Module = Annotated[
    str | None,
    typer.Option(
        help="A model of the trainer, such as llama3, whose registry holds the --config.",
        autocompletion=one_of(*MODELS),
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@dataclass(frozen=True)
class ReadOptions:
    """Options of every command that reads files of a run.

    These are the rank to read, the number of files to read at the same time, whether to ignore the cache, a memory
    limit, and the address of a cluster whose workers read.
    """

    rank: Rank = None
    jobs: Jobs = None
    no_cache: NoCache = False
    max_memory: MaxMemory = None
    cluster: Cluster = None


@dataclass(frozen=True)
class StepReadOptions(ReadOptions):
    """Options of commands that read files of a run and can be limited to the files of one step."""

    step: Step = None


@dataclass(frozen=True)
class LogReadOptions(StepReadOptions):
    """Options of commands that also read logs of other trainers, whose columns may have any name.

    `column_map` has texts such as `loss=train/nll`, each of which assigns a column to a quantity.
    """

    column_map: ColumnMap = None


@dataclass(frozen=True)
class TraceReadOptions(StepReadOptions):
    """Options of commands that read profiler traces.

    `peak_tflops` is the peak of one device in TFLOP/s; model-FLOPs utilisation (MFU) is computed from it.
    """

    peak_tflops: PeakTflops = None


@dataclass(frozen=True)
class DocumentOptions:
    as_json: Json = False
    printed: Printed = None
    output: OutFile = None
    force: Force = False
    debug: Debug = False

    @property
    def asked_format(self) -> Format | None:
        """The requested output format; None if none was requested, so that the output file's suffix decides."""
        return Format.JSON if self.as_json else self.printed


@dataclass(frozen=True)
class ShowOptions(DocumentOptions):
    """Options for showing a report: print it, write it to a file, or open it in the terminal app or the dashboard."""

    no_tui: NoTui = False
    full: Full = False
    web: Web = False

    @property
    def interactive(self) -> bool:
        return not (self.asked_format or self.output or self.no_tui or self.full or self.web) and on_terminal()


def on_terminal() -> bool:
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


@dataclass(frozen=True)
class ModelOptions:
    """Options that name a configuration of the trainer: a TOML file, or a model and one of its registry functions."""

    config: Config = None
    module: Module = None


Command = Callable[..., None]


def spread_groups(function: Command) -> Command:
    """Return the command with each dataclass parameter replaced by one option for each field of the dataclass.

    For example, the function `inspect(paths, read, show)` becomes `inspect(paths, rank, step, ..., as_json, ...)` for
    Typer.
    """
    hints = get_type_hints(function, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}

    @wraps(function)
    def command(**given: object) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        function(**given)

    parameters = list(_spread_parameters(function, hints))
    # Typer reads signature and annotations, and would otherwise find those of the wrapped function.
    vars(command)["__signature__"] = Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _spread_parameters(function: Command, hints: Mapping[str, Any]) -> Iterator[Parameter]:
    """Yield the parameters of a function for Typer: a dataclass becomes one parameter for each of its fields.

    `hints` is {parameter: its type}. All parameters are keyword-only, so that their order does not matter.
    """
    for parameter in signature(function).parameters.values():
        kind = hints[parameter.name]
        if not is_dataclass(kind):
            yield parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)
            continue
        field_hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            hint = field_hints[field.name]
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default_of(field), annotation=hint)


def _default_of(field: "Field[object]") -> object:
    return Parameter.empty if field.default is MISSING else field.default


class ShiftedBy(StrEnum):
    """Who shifts the labels by one position against the tokens: the model or the data.

    The model does so in Hugging Face's transformers, the data in torchtitan.
    """

    MODEL = "model"
    DATA = "data"


@dataclass(frozen=True)
class TokenOptions:
    """Options for reading data sets of tokens, and for choosing the rows that are shown."""

    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="A tokenizer.json, or the folder of a model that has one.", rich_help_panel=INPUT, show_default=False
        ),
    ] = None
    seq_len: Annotated[
        int | None,
        typer.Option(
            help="The number of tokens to which the trainer truncates rows.",
            rich_help_panel=INPUT,
            show_default="by the data",
            min=1,
        ),
    ] = None
    shifted_by: Annotated[
        ShiftedBy | None,
        typer.Option(
            help="What moves the labels by one position: the model (Hugging Face) or the data (torchtitan).",
            rich_help_panel=INPUT,
            show_default="model for input_ids, else data",
        ),
    ] = None
    sequences: Annotated[
        int, typer.Option(help="Number of sequences to show.", rich_help_panel=OUTPUT, min=1, max=100)
    ] = 1
    row: Annotated[
        int | None,
        typer.Option(
            help="Show the sequences from this row on, among the first 100 and the examples of findings.",
            rich_help_panel=OUTPUT,
            show_default="an example of the first finding",
            min=0,
        ),
    ] = None
    max_memory: MaxMemory = None
    no_cache: NoCache = False
