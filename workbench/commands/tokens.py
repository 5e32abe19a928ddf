"""Implement `workbench tokens`: show tokens beside their labels, of any data set or of our trainer's training data."""

from pathlib import Path

from analyzers import tokens
from analyzers.errors import Exit
from analyzers.limits import limited
from analyzers.report import Report, Status, Verdict
from analyzers.run import Run
from analyzers.store import Options
from analyzers.words import share
from workbench.command_options.options import DocumentOptions, FailOn, ModelOptions, TokenOptions
from workbench.commands.analyse import size_in_bytes
from workbench.commands.estimate import ask_trainer
from workbench.commands.output import deliver
from workbench.errors import UsageProblem
from workbench.launch.plan import Request, own_environment, trainer_arguments


def show_tokens(
    words: list[str], data: TokenOptions, model: ModelOptions, document: DocumentOptions, fail_on: FailOn | None
) -> Exit:
    """Print a report on tokens and labels: of the data sets in `words`, or else of the trainer's data."""
    paths, overrides = _paths_and_overrides(words)
    if paths:
        if overrides or model.config or model.module:
            hint = "give either files, or --config and --section.key value"
            raise UsageProblem("data sets and a configuration of the trainer do not go together", hint)
        return deliver(_data_set_report(paths, data), document, Run(paths[0], ()), fail_on)
    request = Request(config=model.config, module=model.module, overrides=tuple(overrides))
    name = Path(request.config or "the defaults")
    return deliver(_trainer_report(request, data.sequences), document, Run(name, ()), fail_on)


def _paths_and_overrides(words: list[str]) -> tuple[list[Path], list[str]]:
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return [Path(word) for word in words[:first]], words[first:]


def _data_set_report(paths: list[Path], data: TokenOptions) -> Report[tokens.TokensData]:
    """Return the report on the data sets at these paths.

    Raises:
        InputError: A file is missing or damaged, or has an unknown format.
    """
    files = tokens.find_files(paths, data.tokenizer)
    memory = size_in_bytes(data.max_memory)
    with limited(str(paths[0]), files.data, memory):
        return tokens.analyze(
            files,
            Options(cache=not data.no_cache, max_memory=memory),
            shown=data.sequences,
            row=data.row,
            seq_len=data.seq_len,
            shifted_by=data.shifted_by,
        )


def _trainer_report(request: Request, count: int) -> Report[tokens.TokensData]:
    """Return a report on the tokens and labels of the first `count` training sequences.

    Raises:
        WorkbenchError: The configuration is wrong, its text is missing, or the packages for training are not installed.
    """
    arguments = [str(count), *trainer_arguments(request)]
    data = ask_trainer("trainer.data", arguments, tokens.TokensData, own_environment(request))
    masked = sum(not row.trained for row in data.rows)
    text = (
        f"{data.tokens:,} tokens make {data.sequences:,} sequences of {data.seq_len:,}; every label counts, none is"
        f" masked; the last {data.left_over:,} tokens are too few for a sequence and are not used"
    )
    if masked:
        text = (
            f"rows are packed into {data.sequences:,} sequences of {data.seq_len:,}; of the tokens shown,"
            f" {share(len(data.rows) - masked, len(data.rows))} have a label, the others are masked"
        )
    verdict = Verdict(status=Status.OK, kind="tokens", sentence=text, confidence=1.0)
    return Report(schema="workbench.tokens/1", inputs=[], verdict=verdict, findings=[], data=data)
