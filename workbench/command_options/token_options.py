"""The options of `workbench tokens`."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from workbench.command_options.options import INPUT, OUTPUT, MaxMemory, NoCache


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
