"""Read what the text around a failure says about the job: its settings, its GPUs, its system.

An answer must fit to it: a switch that is on already is no advice.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

_VALUE = r"['\"]?(?P<value>[\w.+-]+)['\"]?"
_WHOLE_LINE = re.compile(
    r"^[^\w\n]{0,6}(?:export |set |env )?(?P<name>[A-Za-z_][\w.-]{1,60})['\"]?(?: ?[:=] {0,40}| \.{2,60} )"
    rf"{_VALUE}[\s,|│]{{0,99}}$",
    re.MULTILINE,
)
"""Matches a line of a printed configuration that has nothing but a name and its value."""
_IN_BRACKETS = re.compile(rf"(?:[({{]|, ?)(?P<name>[A-Za-z_]\w{{1,60}})={_VALUE}(?=[,)}}])")
_IN_A_DICT = re.compile(rf"['\"](?P<name>[A-Za-z_][\w.-]{{1,60}})['\"]: ?{_VALUE}(?=[,}}\n]|$)")
_PROGRAM = (
    r"python[\d.]* (?:-\w+ )*\S+|torchrun |accelerate launch |deepspeed [^\n]{0,40}--|srun |mpirun |llamafactory-cli "
    r"|axolotl |tune run |singularity |apptainer |docker run "
)
_COMMAND = re.compile(rf"^[^\n]{{0,200}}?\b(?:{_PROGRAM})(?:[^\n]|(?<=\\)\n){{0,8000}}", re.MULTILINE)
_OPTION = re.compile(rf"(?<!\S)--(?P<name>[A-Za-z][\w.-]{{0,60}})(?:[= ]\s{{0,20}}(?:\\\n\s*)?(?!--){_VALUE})?(?=\s|$)")
_ASSIGNED = re.compile(rf"(?<!\S)(?P<name>[A-Za-z_][\w.]{{1,60}})={_VALUE}(?=\s|$)")
_WINDOWS = re.compile(
    r"\bFile \"[A-Za-z]:[\\/]|^(?:PS )?[A-Za-z]:\\[^\n]{0,99}>|\bWindows-1[01]\b|\\site-packages\\", re.MULTILINE
)
_WITHOUT_BF16 = re.compile(
    r"\b(?:(?:Tesla )?(?:T4|V100|P100|P40|P4|K80|M60)(?=[ \-,;:)\]|]|$)|GTX 1\d{3}(?: Ti| SUPER)?"
    r"|RTX 20\d\d(?: Ti| SUPER)?|TITAN (?:X|V|Xp|RTX)|Quadro RTX \d{4})"
)
_ON, _OFF = {"true", "1", "yes", "on", ""}, {"false", "0", "no", "off", "none"}


@dataclass(frozen=True)
class Context:
    """The text of a job's logs that is kept to judge a failure by: their first part, without what errors say.

    Messages of errors often suggest settings, which are thus not those of the job.
    """

    text: str = ""

    def says(self, expression: str) -> bool:
        """Return whether the text matches an expression anywhere."""
        return bool(re.search(expression, self.text))

    @cached_property
    def settings(self) -> dict[str, set[str]]:
        """The settings that commands, configurations and lines of source show: {name: its values}.

        Names and values are as `named` and `valued` return them.
        """
        found: dict[str, set[str]] = {}
        for name, value in _settings_in(self.text):
            found.setdefault(named(name), set()).add(valued(value))
        return found

    def has(self, name: str, value: str) -> bool:
        """Return whether a setting has a value everywhere that the text shows it."""
        return self.settings.get(named(name)) == {valued(value)}

    @cached_property
    def is_windows(self) -> bool:
        """Whether the job ran under Windows."""
        return bool(_WINDOWS.search(self.text))

    @cached_property
    def gpu_without_bf16(self) -> str:
        """The name of a GPU in the text that does not compute in bfloat16; empty if there is none."""
        match = _WITHOUT_BF16.search(self.text)
        return match[0] if match else ""


def named(name: str) -> str:
    """Return the name of a setting in the form in which all its spellings are equal: `--Use-X` as `use_x`."""
    return name.lstrip("-").replace("-", "_").lower().rpartition(".")[2]


def valued(value: str) -> str:
    """Return the value of a setting in the form in which all its spellings are equal."""
    plain = value.strip("'\"").lower()
    return "on" if plain in _ON else "off" if plain in _OFF else plain


def _settings_in(text: str) -> Iterator[tuple[str, str]]:
    for pattern in (_WHOLE_LINE, _IN_BRACKETS, _IN_A_DICT):
        for match in pattern.finditer(text):
            yield match["name"], match["value"]
    for command in _COMMAND.finditer(text):
        for pattern in (_OPTION, _ASSIGNED):
            for match in pattern.finditer(command[0]):
                yield match["name"], match["value"] or ""
