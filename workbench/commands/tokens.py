"""Implement `workbench tokens`: show the tokens that the model reads, and the label that it must predict for each."""

from pathlib import Path

from analyzers.report import Report, Status, Verdict, tool_version
from analyzers.run import Run
from workbench.commands.trainer_process import ask_trainer
from workbench.launch.plan import Request, own_environment, trainer_arguments
from workbench.trainer_answers import TokensData


def tokens(request: Request, count: int) -> Report[TokensData]:
    """Return a report on the tokens and labels of the first `count` training sequences.

    Raises:
        WorkbenchError: The configuration is wrong, its text is missing, or the packages for training are not installed.
    """
    arguments = [str(count), *trainer_arguments(request)]
    data = ask_trainer("trainer.data", arguments, TokensData, own_environment(request))
    text = (
        f"{data.tokens:,} tokens make {data.sequences:,} sequences of {data.seq_len:,}; every label counts, none is"
        f" masked; the last {data.left_over:,} tokens are too few for a sequence and are not used"
    )
    verdict = Verdict(status=Status.OK, kind="tokens", sentence=text, confidence=1.0)
    return Report(
        schema="workbench.tokens/1", version=tool_version(), inputs=[], verdict=verdict, findings=[], data=data
    )


def subject(request: Request) -> Run:
    """Return a `Run` with the path of the configuration and no files, because a report needs a run for its heading."""
    return Run(Path(request.config or "the defaults"), ())
