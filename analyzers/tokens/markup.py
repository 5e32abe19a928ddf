"""Find the turns of a conversation in text, by the marks of a known chat format or of the tokenizer's chat template."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Mask
from analyzers.errors import InputError
from analyzers.tokens.model import Role
from analyzers.tokens.samples import Sample
from analyzers.tokens.vocabulary import CLOSE, OPEN, SPECIAL, ChatTemplate, Vocabulary, latin

_ROLES = {
    **dict.fromkeys(("assistant", "model", "gpt", "bot", "ai", "response", "answer", "a"), Role.ANSWER),
    **dict.fromkeys(("user", "human", "instruction", "input", "question", "q", "ask"), Role.USER),
    **dict.fromkeys(("system", "developer"), Role.SYSTEM),
    **dict.fromkeys(("tool", "ipython", "function", "observation", "environment", "tools"), Role.TOOL),
}
"""{name that a chat format gives to a role, in small letters: the role of the text}."""


class Format(NamedTuple):
    """The marks of a chat format: `openers` begin a turn, `ends` are the texts that end one.

    An opener is a regular expression with the role of its turn; if the role is empty, the group `role` of the
    expression matches its name. Texts in braces are special tokens. A `weak` format consists of words that other texts
    may contain, too.
    """

    name: str
    openers: tuple[tuple[str, str], ...]
    ends: tuple[str, ...]
    weak: bool = False


_NO_THOUGHT = re.compile(rf"{SPECIAL}?<think>\s*{SPECIAL}?</think>\s*")
"""Matches the empty thought that some templates write before an answer; trainers mask it or train it."""
NAME = r"(?P<role>[A-Za-z_]+)"
LINE = r"(?:^|(?<=[\n>]))"
FORMATS = (
    Format("ChatML", ((rf"{{<|im_start|>}}{NAME}\n?", ""),), ("<|im_end|>",)),
    Format("Llama 3", ((rf"{{<|start_header_id|>}}{NAME}{{<|end_header_id|>}}\n{{0,2}}", ""),), ("<|eot_id|>", "<|eom_id|>")),
    Format("Llama 4", ((rf"{{<|header_start|>}}{NAME}{{<|header_end|>}}\n{{0,2}}", ""),), ("<|eot|>", "<|eom|>")),
    Format("Gemma", ((rf"{{<start_of_turn>}}{NAME}\n?", ""),), ("<end_of_turn>",)),
    Format("Harmony", ((rf"{{<|start|>}}{NAME}[^\ue000]*(?:{{<|channel|>}}[^\ue000]*)?{{<|message|>}}", ""),),
           ("<|end|>", "<|return|>", "<|call|>")),
    Format("Granite", ((rf"{{<|start_of_role|>}}{NAME}{{<|end_of_role|>}}", ""),), ("<|end_of_text|>",)),
    Format("DeepSeek", (("{<｜User｜>}", "user"), ("{<｜Assistant｜>}", "assistant")), ("<｜end▁of▁sentence｜>",)),
    Format("Phi", tuple((rf"{{<|{role}|>}}\n?", role) for role in ("system", "user", "assistant", "tool")), ("<|end|>", "</s>")),
    Format("Mistral", ((r"{[INST]} ?", "user"), (r" ?{[/INST]}", "assistant"), (r"{[SYSTEM_PROMPT]}", "system"),
                       (r"{[TOOL_RESULTS]}", "tool"), (r"{[AVAILABLE_TOOLS]}", "system")), ("</s>", "[/SYSTEM_PROMPT]")),
    Format("Alpaca", ((rf"{LINE}### ?(?P<role>Instruction|Input|Response|Human|Assistant|User|System)(?::[ \n]?|\n)", ""),), (), weak=True),
    Format("Vicuna", ((r"(?:^|(?<=[\s>]))(?P<role>USER|ASSISTANT|SYSTEM):", ""),), (), weak=True),
    Format("dialogue", ((rf"{LINE}(?P<role>User|Human|Assistant|System|Question|Answer|Q|A):", ""),), (), weak=True),
)  # fmt: skip


class Region(NamedTuple):
    """A part of a text with one role, from character `start` to `end`.

    `turn` is the number, from 0, of the assistant's answer that it is a part of; -1 if it is a part of none.
    """

    start: int
    end: int
    role: Role
    turn: int = -1


@dataclass(frozen=True)
class Markup:
    """A chat format as regular expressions for one tokenizer's text: the beginnings (openers) and the ends of turns."""

    name: str
    openers: "re.Pattern[str]"
    roles: tuple[str, ...]
    ends: "re.Pattern[str] | None"
    weak: bool = False

    def opened(self, text: str) -> list[tuple["re.Match[str]", Role]]:
        return [(match, self.role(match)) for match in self.openers.finditer(text)]

    def role(self, match: "re.Match[str]") -> Role:
        number = int((match.lastgroup or "o0")[1:])
        name = self.roles[number] or match["role"]
        return _ROLES.get(name.lower(), Role.EITHER)

    def regions(self, text: str) -> list[Region]:
        opened = self.opened(text)
        if not opened:
            return [Region(0, len(text), Role.TEXT)]
        result = [Region(0, opened[0][0].start(), Role.EITHER)]
        turn = -1
        for i, (match, role) in enumerate(opened):
            following = opened[i + 1][0].start() if i + 1 < len(opened) else len(text)
            turn += role is Role.ANSWER
            result += self.turn_regions(text, match, role, following, turn)
        return [region for region in result if region.end > region.start]

    def turn_regions(self, text: str, opener: "re.Match[str]", role: Role, stop: int, turn: int) -> list[Region]:
        """Return the regions of one turn, from its opener to `stop`, which is the next opener or the end of the text.

        `turn` is the number of the answer, if the turn is one.
        """
        is_answer = role is Role.ANSWER
        number = turn if is_answer else -1
        thought = _NO_THOUGHT.match(text, opener.end(), stop) if is_answer else None
        begin = thought.end() if thought else opener.end()
        end = self.ends.search(text, begin, stop) if self.ends else None
        finish, after = (end.start(), end.end()) if end else (stop, stop)
        return [
            Region(opener.start(), opener.end(), Role.OPENER if is_answer else Role.TEMPLATE, number),
            Region(opener.end(), begin, Role.EITHER),
            Region(begin, finish, role, number),
            Region(finish, after, Role.END if is_answer else Role.TEMPLATE, number),
            Region(after, stop, Role.EITHER),
        ]


def _literal(text: str, vocabulary: Vocabulary) -> str:
    """Return a regular expression that finds a text of a chat format in a row's text.

    If the tokenizer has the text as a special token, the expression finds only this token, and not the same
    characters in ordinary text.
    """
    return (SPECIAL if text in vocabulary.added else "") + re.escape(latin(text))


def _compiled_format(form: Format, vocabulary: Vocabulary) -> Markup:
    """Return a chat format as regular expressions that find where turns begin and end in a tokenizer's texts.

    Special tokens are marked in these texts. If the tokenizer has a special token for a mark of the format, this token
    is searched, or else the mark as plain text.
    """

    def expanded(pattern: str) -> str:
        return re.sub(r"\{([^{}0-9][^{}]*)\}", lambda match: _literal(match[1], vocabulary), pattern)

    openers = "|".join(f"(?P<o{i}>{expanded(pattern)})" for i, (pattern, _) in enumerate(form.openers))
    ends = dict.fromkeys([*form.ends, *_eos_text(vocabulary)])
    pattern = re.compile("|".join(_literal(end, vocabulary) for end in ends)) if ends else None
    return Markup(form.name, re.compile(openers), tuple(role for _, role in form.openers), pattern, form.weak)


def _eos_text(vocabulary: Vocabulary) -> list[str]:
    return (
        [] if vocabulary.eos is None else [text for text in vocabulary.added if vocabulary.ids[text] == vocabulary.eos]
    )


def choose_markup(texts: Sequence[str], vocabulary: Vocabulary) -> Markup | None:
    strong = [_compiled_format(form, vocabulary) for form in FORMATS if not form.weak]
    weak = [_compiled_format(form, vocabulary) for form in FORMATS if form.weak]
    derived = _template_markup(vocabulary)
    # Marks such as <|im_start|> do not occur in text by chance; words such as `User:` may, and so come last.
    for markup in (*strong, *([derived] if derived else []), *weak):
        if _is_format_of(markup, texts):
            return markup
    return None


def _is_format_of(markup: Markup, texts: Sequence[str]) -> bool:
    found = [{role for _, role in markup.opened(text)} for text in texts]
    both = any({Role.USER, Role.ANSWER} <= roles for roles in found)
    # Words such as `Answer:` occur in other texts too, so more of the texts must have them.
    return both and sum(map(bool, found)) >= (0.8 if markup.weak else 0.5) * len(texts)


_USERS, _ANSWERS, RULES = ("q7u", "q8u"), ("r7a", "r8a"), "s7y"
"""Contents of messages that no template has in its own text."""


def _template_markup(vocabulary: Vocabulary) -> Markup | None:
    """Return the chat format that the tokenizer's chat template writes, found by rendering known messages.

    The messages are a question, its answer and a second question with its answer. The text that the template writes
    between the first question and its answer is the end of the question and the opener of the answer. The text between
    the answer and the next question is the end of the answer and the opener of the question. The result is None if
    these parts cannot be distinguished.
    """
    try:
        template = ChatTemplate(vocabulary)
        messages = [
            {"role": role, "content": content}
            for question, answer in zip(_USERS, _ANSWERS, strict=True)
            for role, content in (("user", question), ("assistant", answer))
        ]
        text = template.render(messages).replace(OPEN, "").replace(CLOSE, "")
    except InputError:
        return None
    parts = re.split("|".join((*_USERS, *_ANSWERS)), text)
    # Each message must occur exactly once: a template may drop or repeat messages.
    if len(parts) != 5:
        return None
    _, to_answer, to_question, _, last = parts
    # Behind the last answer there is no opener, so what stands there is the end of an answer alone.
    end = last if to_question.startswith(last) else commonprefix([to_question, last])  # noqa: RUF071
    question = to_question.removeprefix(end)
    answer = to_answer.removeprefix(end) if end else to_answer
    if not (question.strip() and answer.strip() and question != answer):
        return None
    openers = {question.strip(" "): "user", answer.strip(" "): "assistant"}
    return _literal_markup({**openers, **_system_opener(template, end), **_tool_opener(template, end)}, end, vocabulary)


def _system_opener(template: ChatTemplate, end: str) -> dict[str, str]:
    """Return {text that opens a system message: "system"}; empty if the template has no such text of its own.

    `template` is the tokenizer's chat template; the text is taken from one of its renderings. `end` is the text that
    ends a turn.
    """
    try:
        text = template.render([{"role": "system", "content": RULES}, {"role": "user", "content": _USERS[0]}])
    except InputError:
        return {}
    before = text.partition(RULES)[0].replace(OPEN, "").strip(" ")
    return {before: "system"} if before.strip() and end else {}


def _tool_opener(template: ChatTemplate, end: str) -> dict[str, str]:
    """Return {text that opens a tool's result: "tool"}; empty if the template has none.

    `template` is the tokenizer's chat template; the text is taken from one of its renderings. `end` is the text that
    ends a turn.
    """
    asked = {"role": "user", "content": _USERS[0]}, {"role": "assistant", "content": _ANSWERS[0]}
    try:
        text = template.render([*asked, {"role": "tool", "content": RULES}])
    except InputError:
        return {}
    after, found, _ = text.replace(OPEN, "").replace(CLOSE, "").partition(_ANSWERS[0])[2].partition(RULES)
    opener = after.removeprefix(end).strip(" ")
    return {opener: "tool"} if found and opener.strip() else {}


def _literal_markup(openers: dict[str, str], end: str, vocabulary: Vocabulary) -> Markup:
    """Return a chat format from `openers`, {text: role}, and `end`, the text that ends an answer."""

    def expression(text: str) -> str:
        # The longest comes first, because alternation takes the first match, and one token may begin like another.
        specials = sorted(vocabulary.added, key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, specials)) + ")", text) if specials else [text]
        return "".join(_literal(part, vocabulary) for part in parts if part)

    pattern = "|".join(f"(?P<o{i}>{expression(text)})" for i, text in enumerate(openers))
    stripped = end.strip()
    ends = re.compile(expression(stripped)) if stripped else None
    return Markup("the tokenizer's template", re.compile(pattern), tuple(openers.values()), ends)


_CONTENT = (Role.ANSWER, Role.USER, Role.SYSTEM, Role.TOOL)
_RUN_WITHOUT_TOKENIZER = 3
"""The number of equal tokens at the end of a row that count as padding if no tokenizer names the padding token."""


class Pieces(NamedTuple):
    """The text of a row, in which a character stands for a byte, and where each token starts and ends in it.

    `sizes` has the bytes of each token.
    """

    text: str
    starts: Column
    ends: Column
    sizes: Column


class Roles(NamedTuple):
    """The role of each token of a row, and the number of the answer that it belongs to (-1: none).

    `pieces` is None if there is no tokenizer.
    """

    roles: Column
    turns: Column
    pieces: Pieces | None = None


def pieces_of(ids: Column, vocabulary: Vocabulary) -> Pieces:
    known = np.clip(ids, 0, len(vocabulary.lengths) - 1)
    lengths = np.where(known == ids, vocabulary.lengths[known], 1)
    ends = np.cumsum(lengths)
    specials = np.where(known == ids, vocabulary.is_special[known], False)
    return Pieces("".join(vocabulary.pieces_of(ids)), ends - lengths, ends, lengths - specials)


def padding_of(sample: Sample, vocabulary: Vocabulary | None) -> Mask:
    """Return a mask of the padding tokens of a row.

    They are the tokens that the attention mask leaves out. If it leaves out none, or is missing, they are the runs of
    the vocabulary's padding token at the two ends of the row. Without a vocabulary, they are a long run of one token at
    the end of the row.
    """
    ids = sample.ids
    if sample.attention is not None and not sample.attention.all():
        return np.asarray(sample.attention == 0)
    pad = vocabulary.pad if vocabulary else None
    result = np.zeros(len(ids), dtype=bool)
    if not len(ids) or (vocabulary and pad is None):
        return result
    same = ids == (ids[-1] if pad is None else pad)
    after = len(ids) - int(np.argmin(same[::-1])) if not same.all() else 0
    run = len(ids) - after
    if vocabulary is None:
        # The first may be the end of a document that is used as padding, too.
        result[after + 1 :] = run >= _RUN_WITHOUT_TOKENIZER
        return result
    # Where the end token is also the padding, the first one of the run ends the text.
    keep = int(pad == vocabulary.eos)
    result[after + keep :] = True
    before = int(np.argmin(same)) if not same.all() else 0
    # One such token at the begin may belong to the text: the end of the document before, or the begin of this one.
    may_be_text = pad in (vocabulary.eos, vocabulary.bos)
    result[: 0 if may_be_text and before == 1 else before] = True
    return result


def find_roles(sample: Sample, padding: Mask, vocabulary: Vocabulary | None, markup: Markup | None) -> Roles:
    nothing = np.full(len(sample.ids), -1, dtype=np.int64)
    if vocabulary is None:
        return Roles(np.where(padding, Role.PADDING, Role.EITHER).astype(np.int64), nothing)
    pieces = pieces_of(sample.ids, vocabulary)
    regions = _prompt_regions(pieces.text, sample) or (markup.regions(pieces.text) if markup else [])
    if regions and regions[0].role is not Role.TEXT:
        roles, turns = _roles_by_region(pieces, regions)
    else:
        roles, turns = np.full(len(sample.ids), int(Role.TEXT)), nothing
    special = np.isin(
        sample.ids, [token for token in (vocabulary.bos, vocabulary.eos, vocabulary.pad) if token is not None]
    )
    # A begin or end token inside of a user's turn is no text of the user: to train it is no mistake.
    roles[special & np.isin(roles, (Role.TEXT, Role.USER, Role.SYSTEM))] = Role.EITHER
    # A chat format already says which end token ends an answer, and which ends a user's turn.
    if vocabulary.eos is not None and not (regions and markup and not sample.completion):
        _mark_ends(roles, turns, sample.ids == vocabulary.eos)
    # Last, because padding may be the same token as the end of an answer.
    roles[padding], turns[padding] = Role.PADDING, -1
    return Roles(roles, turns, pieces)


def _mark_ends(roles: Column, turns: Column, is_end: Mask) -> None:
    """Give the role END to the tokens in the mask `is_end`, and assign each of them to a turn.

    Tokens outside of turns are assigned to the last turn. In a row without turns, each of them ends a turn of its own.
    `roles` and `turns` are changed in place.
    """
    roles[is_end] = Role.END
    without = is_end & (turns < 0)
    turns[without] = np.arange(np.count_nonzero(without)) if not (turns >= 0).any() else turns.max()


def _prompt_regions(text: str, sample: Sample) -> list[Region]:
    """Return the regions of a row whose prompt and completion are known; empty if its text does not contain them.

    The regions are the prompt (role USER), the completion (role ANSWER) and the rest.
    """
    if not sample.completion.strip():
        return []
    plain = text.replace(SPECIAL, "")
    where = plain.find(sample.completion.replace(SPECIAL, ""), plain.find(sample.prompt) + len(sample.prompt))
    if sample.prompt not in plain or where < 0:
        return []
    # The text has a character more for each special token before a place.
    offsets = list(itertools.accumulate((sign != SPECIAL for sign in text), initial=0))
    start = offsets.index(where) if where else 0
    end = offsets.index(where + len(sample.completion))
    parts = (Region(0, start, Role.USER), Region(start, end, Role.ANSWER, 0), Region(end, len(text), Role.EITHER))
    return [part for part in parts if part.end > part.start]


def _roles_by_region(pieces: Pieces, regions: list[Region]) -> tuple[Column, Column]:
    """Return the role of each token and the number of its answer; a token on both sides of a border gets `EITHER`."""
    borders = np.array([region.start for region in regions])
    kinds = np.array([region.role for region in regions])
    numbers = np.array([region.turn for region in regions])
    first = np.searchsorted(borders, pieces.starts, "right") - 1
    # A token without text ends where it starts; without the maximum it would end in the region before.
    last = np.searchsorted(borders, np.maximum(pieces.ends - 1, pieces.starts), "right") - 1
    roles = np.where(kinds[first] == kinds[last], kinds[first], Role.EITHER)
    _free_edges(roles, pieces, regions)
    return roles, numbers[first]


def _free_edges(roles: Column, pieces: Pieces, regions: list[Region]) -> None:
    """Give the role `EITHER` to blank tokens at the edges of a message, because they may belong to the marks around it.

    `roles` is changed in place.
    """
    for region in regions:
        if region.role not in _CONTENT:
            continue
        content = pieces.text[region.start : region.end]
        begin = region.start + len(content) - len(content.lstrip())
        stop = region.start + len(content.rstrip())
        before, after = np.searchsorted(pieces.starts, (region.start, stop))
        first = np.searchsorted(pieces.ends, begin, "right")
        roles[before:first] = Role.EITHER
        finish = np.searchsorted(pieces.ends, region.end, "right")
        roles[max(after, before) : finish] = Role.EITHER
