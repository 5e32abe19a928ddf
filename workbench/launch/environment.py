"""Read the environment variables that torchtitan's launch scripts use, such as `NGPU=8 CONFIG_FILE=x.toml`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from workbench.console import note
from workbench.errors import UsageProblem
from workbench.launch.plan import OWN_TRAINER, Request

WITHOUT_EFFECT = {
    "LOG_RANK": "the output of every rank is in the folder of logs",
    "TRAIN_FILE": "give the module of another trainer as --trainer MODULE",
    "TORCHFT_LIGHTHOUSE": "there is no torchft",
}
"""{environment variable of torchtitan's scripts that has no effect here: why}, for the note to print."""

CONFIGURATION = ("CONFIG_FILE", "MODULE", "CONFIG")
"""The environment variables that name a configuration."""


def from_environment(request: Request, variables: Mapping[str, str] | None = None) -> tuple[Request, list[str]]:
    """Return the launch request, completed from environment variables such as NGPU, and a note on each variable.

    The command line takes precedence; the note then says so. The variables count only for a trainer, not for a command
    after `--`.

    Raises:
        UsageProblem: A variable has an unusable value, or two variables contradict each other.
    """
    given = {name: value for name, value in (os.environ if variables is None else variables).items() if value}
    if request.command is not None:
        return request, []
    notes = [f"{name} has no effect: {why}" for name, why in WITHOUT_EFFECT.items() if name in given]
    if "CONFIG" in given and "MODULE" not in given and not (request.config or "CONFIG_FILE" in given):
        notes.append(f"CONFIG={given['CONFIG']} has no effect without MODULE, the model whose registry has it")
    found = _with_config(request, given)
    if "NGPU" in given and request.nproc is None:
        found = replace(found, nproc=_rank_count(given["NGPU"]))
    if "COMM_MODE" in given and request.trainer != OWN_TRAINER:
        notes.append(f"COMM_MODE has no effect on {request.trainer}: give it its own option")
        del given["COMM_MODE"]
    if "COMM_MODE" in given and not any(word.startswith(("--comm.mode", "--comm-mode")) for word in request.overrides):
        found = replace(found, overrides=(*found.overrides, "--comm.mode", given["COMM_MODE"]))
    taken = {"NGPU": found.nproc != request.nproc, "COMM_MODE": found.overrides != request.overrides}
    taken |= dict.fromkeys(("MODULE", "CONFIG"), found.module != request.module)
    taken |= {"CONFIG_FILE": found.config != request.config and found.module == request.module}
    for name, is_taken in taken.items():
        if name in given and (name != "CONFIG" or "MODULE" in given):
            notes.append(f"{name}={given[name]} from the environment" + ("" if is_taken else ": the command line wins"))
    return found, notes


def for_command(
    request: Request, command: str, variables: Mapping[str, str] | None = None, *, reads: Sequence[str] = ("NGPU",)
) -> Request:
    """Return the request of a command that reads a configuration but launches no job, such as `estimate`.

    What the command line does not give comes from the environment: the configuration, and the variables in `reads`
    (NGPU, COMM_MODE). A note is printed for each variable, even if it has no effect on the command.

    Raises:
        UsageProblem: As for `from_environment`.
    """
    given = {name: value for name, value in (os.environ if variables is None else variables).items() if value}
    read = {name: given[name] for name in (*CONFIGURATION, *reads) if name in given}
    request, notes = from_environment(request, read)
    unread = [name for name in ("COMM_MODE", "NGPU") if name in given and name not in reads]
    for text in (*notes, *(f"{name} has no effect on {command}" for name in unread)):
        note(text)
    return request


def _with_config(request: Request, given: Mapping[str, str]) -> Request:
    """Return the request with the configuration that the environment variables in `given` name.

    If the command line gives a configuration, the request stays unchanged.

    Raises:
        UsageProblem: The variables name two configurations, or a module without a configuration.
    """
    if request.config or request.module:
        return request
    if "MODULE" in given and "CONFIG_FILE" in given:
        raise UsageProblem("MODULE and CONFIG_FILE are both set, and each names a configuration", "unset one of them")
    if "MODULE" in given and "CONFIG" not in given:
        hint = f"set CONFIG to a function of its registry, such as {given['MODULE']}_debugmodel"
        raise UsageProblem(f"MODULE={given['MODULE']} without CONFIG", hint)
    if "MODULE" in given:
        return replace(request, module=given["MODULE"], config=given["CONFIG"])
    return replace(request, config=given["CONFIG_FILE"]) if "CONFIG_FILE" in given else request


def _rank_count(text: str) -> int:
    """Return the number of ranks in `text`, the value of NGPU.

    Raises:
        UsageProblem: The value is not a positive integer.
    """
    if not text.isdecimal() or int(text) < 1:
        raise UsageProblem(f"NGPU={text} is not an integer from 1", "set NGPU to the number of ranks")
    return int(text)
