"""Render conversations as text with the chat template of a tokenizer, in the sandbox of jinja2."""

import importlib
import json
from typing import Any

from analyzers.errors import InputError
from analyzers.tokens.reading.vocabulary import INSTALL, Vocabulary

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
    """The compiled chat template of a tokenizer."""

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
