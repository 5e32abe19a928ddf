"""Read a tokenizer: the bytes of each token, the special tokens, the chat template, and how to encode text.

Only encoding needs the package tokenizers; the bytes of a token are read from `tokenizer.json` itself. They are stored
as a text with a character for each byte (the *piece* of the token).
"""

import functools
import importlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.errors import InputError

SPECIAL = "\ue000"
"""The character before the text of an added token such as `<|im_end|>`; it does not occur in other tokens."""
_EOS_NAMES = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<eos>", "<｜end▁of▁sentence｜>")
_BOS_NAMES = ("<s>", "<|begin_of_text|>", "<bos>", "<｜begin▁of▁sentence｜>", "<|startoftext|>")
_PAD_NAMES = ("<pad>", "<|pad|>", "[PAD]", "<|finetune_right_pad_id|>", "<|padding|>")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
INSTALL = "pip install 'torch-workbench[tokens]'"
# Tables have a row for each id up to the largest, so that one huge id in a bad file would fill the memory.
_ENOUGH_IDS = 1 << 24


@functools.cache
def _byte_characters() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def latin(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _pairs_of(vocabulary: Any) -> list[tuple[Any, Any]]:
    """Return pairs (token, id) from the vocabulary of a model: a dict {token: id}, or a list of (token, score).

    Raises:
        TypeError: It is neither.
    """
    if isinstance(vocabulary, dict):
        return list(vocabulary.items())
    if not isinstance(vocabulary, list) or not all(isinstance(pair, list) and pair for pair in vocabulary):
        raise TypeError("the vocabulary is neither an object nor a list of pairs")
    return [(pair[0], i) for i, pair in enumerate(vocabulary)]


def _is_id(number: object) -> TypeGuard[int]:
    return isinstance(number, int) and 0 <= number < _ENOUGH_IDS


class Vocabulary:
    """The tokens of a `tokenizer.json`, and the names of special tokens from the files beside it.

    `ids` maps the text of a token to its id, `pieces` an id to the token's bytes; `added` are the texts of added
    tokens. `eos`, `bos` and `pad` are ids (None: there is no such token).
    """

    def __init__(self, content: bytes, config: dict[str, Any]) -> None:
        try:
            self.description = msgspec.json.decode(content)
            vocabulary = _pairs_of(self.description["model"]["vocab"])
            added = msgspec.convert(self.description.get("added_tokens") or [], list[dict[str, Any]])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, TypeError) as error:
            raise InputError(
                f"no tokenizer.json: {error}", "give --tokenizer the tokenizer.json of the model"
            ) from error
        self.content, self.config = content, config
        self.ids: dict[str, int] = {}
        self.pieces: dict[int, str] = {}
        self.add_vocabulary(vocabulary)
        self.added: set[str] = set()
        self.add_specials(added)
        self.eos = self.special_id("eos_token", _EOS_NAMES)
        self.bos = self.special_id("bos_token", _BOS_NAMES)
        self.pad = self.special_id("pad_token", _PAD_NAMES)

    def add_vocabulary(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Add the tokens of the tokenizer's model, given as pairs (token, id)."""
        text = msgspec.json.encode([self.description.get(part) for part in ("decoder", "pre_tokenizer")])
        self.is_byte_level, self.is_wordpiece = b'"ByteLevel"' in text, b'"WordPiece"' in text
        for token, number in pairs:
            if isinstance(token, str) and _is_id(number):
                self.ids[token] = number
                self.pieces[number] = self.piece(token)

    def piece(self, token: str) -> str:
        """Return the bytes that a token stands for, as a text with a character for each byte.

        `token` is the token as the tokenizer's file writes it, for example with `▁` for a space.
        """
        if self.is_byte_level:
            bytes_of = _byte_characters()
            return "".join(chr(bytes_of[sign]) if sign in bytes_of else latin(sign) for sign in token)
        if match := _BYTE.fullmatch(token):
            return chr(int(match[1], 16))
        if self.is_wordpiece:
            return latin(token.removeprefix("##") if token.startswith("##") else f" {token}")
        return latin(token.replace("▁", " "))

    def add_specials(self, added: Iterable[dict[str, Any]]) -> None:
        """Add the tokens that are not part of the tokenizer's model, such as those of the chat template."""
        for token in added:
            text, number = token.get("content"), token.get("id")
            if isinstance(text, str) and _is_id(number):
                self.ids[text] = number
                # Such a token stands for a byte of the text, although the file lists it among the added ones.
                if _BYTE.fullmatch(text) and not self.is_byte_level:
                    continue
                self.pieces[number] = SPECIAL + latin(text)
                self.added.add(text)

    def special_id(self, key: str, names: Sequence[str]) -> int | None:
        """Return the id of the special token for `key`, such as `eos_token`; None if there is none.

        If the tokenizer's configuration has the key, the token there is used. Otherwise it is the first of the usual
        `names` that is an added token.
        """
        # An entry without a value says that there is no such token; the usual names must not replace it.
        if key in self.config:
            return self.ids.get(self.special_text(key))
        return next((self.ids[name] for name in names if name in self.added), None)

    def special_text(self, key: str) -> str:
        value = self.config.get(key)
        text = value.get("content") if isinstance(value, dict) else value
        return text if isinstance(text, str) else ""

    @property
    def template(self) -> str:
        """The chat template; empty if the tokenizer has none."""
        template = self.config.get("chat_template")
        if isinstance(template, list):
            # Some tokenizers have several named templates, such as one for tools.
            named = {str(one.get("name")): one.get("template") for one in template if isinstance(one, dict)}
            template = named.get("default") or next(iter(named.values()), "")
        return template if isinstance(template, str) else ""

    def pieces_of(self, ids: Column) -> list[str]:
        """Return the bytes of each token, as a text with a character for each byte; U+FFFD for an unknown id."""
        pieces = self.pieces
        return [pieces.get(token, "\ufffd") for token in ids.tolist()]

    @functools.cached_property
    def lengths(self) -> Column:
        """The number of characters in the piece of each token, indexed by id; 1 for ids without a token."""
        table = np.ones(max(self.pieces, default=0) + 1, np.int64)
        for token, piece in self.pieces.items():
            table[token] = len(piece)
        return table

    @functools.cached_property
    def is_special(self) -> Column:
        table = np.zeros(len(self.lengths), dtype=bool)
        table[[self.ids[text] for text in self.added]] = True
        return table

    def bytes_of(self, token: int) -> str:
        piece = self.pieces.get(token)
        return f"<{token}>" if piece is None else piece.replace(SPECIAL, "")

    @functools.cached_property
    def encoder(self) -> Any:
        """This tokenizer as loaded by the package tokenizers, which can encode text.

        Raises:
            InputError: The package is not installed, or refuses the file.
        """
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError as error:
            raise InputError("to tokenise text, the package tokenizers is needed", INSTALL) from error
        try:
            encoder = tokenizers.Tokenizer.from_str(self.content.decode())
        except Exception as error:  # the package raises bare exceptions
            raise InputError(f"the package tokenizers refuses tokenizer.json: {error}", "check its version") from error
        # tokenizer.json may store the truncation and padding of the run that saved it.
        encoder.no_truncation()
        encoder.no_padding()
        return encoder

    def encode(self, text: str, *, specials: bool) -> Column:
        # JSON may hold half of a surrogate pair, which the package refuses.
        clean = text.encode("utf-8", "replace").decode()
        return np.array(self.encoder.encode(clean, add_special_tokens=specials).ids, dtype=np.int64)


def load_vocabulary(paths: Sequence[Path]) -> Vocabulary | None:
    """Return the tokenizer in these files, `tokenizer.json` and those beside it; None if there are no files.

    Raises:
        InputError: There is no tokenizer.json, or a file is damaged.
    """
    if not paths:
        return None
    config: dict[str, Any] = {}
    content = b""
    for path in paths:
        if path.suffix == ".jinja":
            config["chat_template"] = path.read_text(encoding="utf-8", errors="replace")
        elif path.name in ("tokenizer_config.json", "special_tokens_map.json"):
            # The left side loses: what another file of the tokenizer said before is kept.
            config = _parsed_config(path) | config
        else:
            content = path.read_bytes()
    return Vocabulary(content, config)


def _parsed_config(path: Path) -> dict[str, Any]:
    """Return the contents of a tokenizer's configuration file.

    Raises:
        InputError: It is not a JSON object.
    """
    try:
        return dict(msgspec.json.decode(path.read_bytes()))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError) as error:
        raise InputError(f"{path.name}: {error}", "check that the file was copied whole") from error


OPEN, CLOSE = "\ue001", "\ue002"
"""Characters around the text of a `{% generation %}` block in rendered text; they are removed before encoding."""
_NO_TEMPLATE = "add chat_template.jinja, or a chat_template in tokenizer_config.json beside tokenizer.json"
LONGEST = 8 << 20
"""The most characters of a rendered conversation, some two million tokens.

A hostile template may write far more text than its messages have, and tokenising takes some hundred bytes of memory for
each character.
"""
_WIDEST = 64
"""The widest indent that a template may ask for; JSON needs an indent for each of its lines."""
Messages = list[dict[str, Any]]


class ChatTemplate:
    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.template:
            raise InputError("the tokenizer has no chat template, which conversations need", _NO_TEMPLATE)
        self.names = {key: vocabulary.special_text(key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        self.has_generation = "generation" in vocabulary.template and "endgeneration" in vocabulary.template
        self.template = compiled(vocabulary.template)

    def render(self, messages: Messages, tools: Any = None) -> str:
        """Return a conversation as text; the text of a `{% generation %}` block is between OPEN and CLOSE.

        Raises:
            InputError: The template refuses the conversation.
        """
        try:
            text = self.template.render(messages=messages, tools=tools, add_generation_prompt=False, **self.names)
        # The limit of this process was reached, which is no fault of the conversation.
        except MemoryError:
            raise
        except Exception as error:  # a template may raise anything
            raise InputError(f"the chat template refuses it: {error}", _NO_TEMPLATE) from error
        if len(text) > LONGEST:
            raise InputError(f"the chat template writes {len(text):,} characters for one conversation", _NO_TEMPLATE)
        return str(text)


def compiled(source: str) -> Any:
    """Return a chat template, compiled in the sandbox, with the functions that chat templates may call.

    Raises:
        InputError: jinja2 is not installed, or the template has an error.
    """
    try:
        # Imported here, because jinja2 is optional: rows of tokens are read without it.
        sandbox = importlib.import_module("jinja2.sandbox")
        jinja = importlib.import_module("jinja2")
    except ImportError as error:
        raise InputError("to render conversations, the package jinja2 is needed", INSTALL) from error
    # The options, filters and functions are those with which transformers renders the templates of models.
    extensions = [_generation_extension(), "jinja2.ext.loopcontrols"]
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = to_json
    # The date is fixed, so that the same data set always gives the same tokens.
    environment.globals.update(raise_exception=_refuse_conversation, strftime_now=lambda _: "2026-01-01")
    try:
        return environment.from_string(source)
    except (jinja.TemplateError, SyntaxError, ValueError) as error:
        raise InputError(f"the chat template has an error: {error}", _NO_TEMPLATE) from error


def to_json(value: Any, indent: int | str | None = None, **_: Any) -> str:
    """Return a value as JSON without escaped characters, as chat templates expect.

    Raises:
        ValueError: The indent is so wide that it can only be meant to fill the memory.
    """
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > _WIDEST:
        raise ValueError(f"an indent of more than {_WIDEST}")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse_conversation(message: str) -> None:
    """Raise ValueError: this is the function `raise_exception` that a chat template calls to refuse a conversation."""
    raise ValueError(message)


def _generation_extension() -> Any:
    """Return the jinja2 extension for `{% generation %}` blocks, which mark the text of the assistant."""
    nodes, extension = importlib.import_module("jinja2.nodes"), importlib.import_module("jinja2.ext")

    def parse(self: Any, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(_: Any, caller: Any) -> str:
        return f"{OPEN}{caller()}{CLOSE}"

    return type("Generation", (extension.Extension,), {"tags": {"generation"}, "parse": parse, "marked": marked})
