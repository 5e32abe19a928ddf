"""A tokenizer and its chat template come from a stranger: each is used or refused, in bounded memory and time."""

import json
import resource

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers import tokens
from analyzers.errors import InputError
from analyzers.store import Options
from analyzers.tokens.samples import Sampler
from analyzers.tokens.vocabulary import ChatTemplate, Vocabulary

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

ADDED = {"id": 4, "content": "<s>", "special": True}
ADDED |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
MODEL = {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "<s>": 4}, "merges": ["a b"], "unk_token": None}
TOKENIZER = {"version": "1.0", "model": MODEL, "added_tokens": [ADDED]}
TOKENIZER |= dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding"))
ROW = {"messages": [{"role": "user", "content": "a" * 60}, {"role": "assistant", "content": "b"}]}
PLAIN = "{% for m in messages %}<s>{{ m.content }}{% endfor %}"


def answered(folder, tokenizer, template=PLAIN):
    """Analyse a row with this tokenizer, and check that the answer is a report or a refusal, never a failed reader."""
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = "answered"
    try:
        files = tokens.find_files([folder / "rows.jsonl"], folder)
        tokens.analyze(files, Options(cache=False, max_memory=768 << 20)).json()
    except InputError as error:
        said = error.message
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 22
    assert "the reader failed" not in said
    assert "the reader crashed" not in said
    return said


def split_by(expression):
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
BAD_TOKENIZERS = {
    **{f"id {number}": {"added_tokens": [ADDED | {"id": number}]} for number in (2**63, 2**70, 2**32 - 1, -1, 1.5)},
    "added tokens that are none": {"added_tokens": [None, 5, "x"]},
    "added tokens as a number": {"added_tokens": 5},
    "a number as vocabulary": {"model": MODEL | {"vocab": 5}},
    "an id beyond 64 bits": {"model": MODEL | {"vocab": {"a": 2**63}}},
    "a list of empty pairs": {"model": {"type": "Unigram", "vocab": [[], ["a"]], "unk_id": 2**63}},
    "a token of a megabyte": {"added_tokens": [ADDED | {"content": "x" * (1 << 20)}]},
    "a huge regular expression": {"pre_tokenizer": split_by("(a|a)*" * 2000)},
    "a slow regular expression": {"pre_tokenizer": split_by("(a+)+$")},
    "a nested regular expression": {"pre_tokenizer": split_by("(" * 100_000)},
    "a repetition": {"pre_tokenizer": split_by("a{60000}{60000}")},
    "padding without end": {
        "padding": {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
        | {"pad_to_multiple_of": 2**40}
    },
    "a normalizer that writes without end": {"normalizer": {"type": "Sequence", "normalizers": [GROWING] * 6}},
}


@pytest.mark.parametrize("change", BAD_TOKENIZERS.values(), ids=BAD_TOKENIZERS)
def test_any_tokenizer_is_used_or_refused(change, tmp_path):
    answered(tmp_path, TOKENIZER | change)


BAD_TEMPLATES = {
    "indent": ("{{ messages|tojson(indent=999999) }}", "indent"),
    "indent beyond 64 bits": ("{{ messages|tojson(indent=99999999999999999999) }}", "indent"),
    "indent of text": ("{{ messages|tojson(indent='x' * 1000000) }}", "indent"),
    "range": ("{% for i in range(10**9) %}{{ i }}{% endfor %}", "Range too big"),
    "repeated text": ("{{ 'a' * (10**10) }}", "memory"),
    "repeated list": ("{{ [1] * (10**10) }}", "memory"),
    "long text": ("{{ 'a' * (10**7) }}", "characters"),
    "centred": ("{{ 'a'|center(10**10) }}", "memory"),
    "indented": ("{{ 'a\nb'|indent(10**10) }}", "memory"),
    "format": ("{{ '{:>9999999999}'.format(1) }}", "memory"),
    "doubled": (
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "memory",
    ),
    "batches": ("{{ [1]|batch(10**10, 'x')|list }}", "memory"),
    "joined": ("{{ range(99999)|join('a' * 100000) }}", "memory"),
    "replaced": ("{{ ('a' * 100000)|replace('', 'b' * 100000) }}", "memory"),
    "endless macro": ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "recursion"),
    "nested blocks": ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, "nested too deeply"),
    "nested expression": ("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}", "nested too deeply"),
    "nested negation": ("{{ " + "not " * 100_000 + "1 }}", "nested too deeply"),
    "break outside": ("{% break %}", "error"),
    "include": ("{% include '/etc/passwd' %}", "no loader"),
    "no end": ("{% for %}", "error"),
    "long refusal": ("{{ raise_exception('x' * 100000000) }}", "refuses"),
    "own marks": ("\ue001" * 100_000 + "{% generation %}{% endgeneration %}", "answered"),
}


@pytest.mark.parametrize(("template", "answer"), BAD_TEMPLATES.values(), ids=BAD_TEMPLATES)
def test_a_template_cannot_take_memory_or_time_without_end(template, answer, tmp_path):
    said = answered(tmp_path, TOKENIZER, template)
    assert answer in said
    assert len(said) < 1000


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 2**31, 2**32, 2**63, 2**70, 1e308, 1.5, "", "\0", "\x1b[31m", "<s>", "a" * 5000]),
    st.sampled_from([[], {}, [[]], [None], {"": {}}, [["a", 1.0]], {"a": -1}, [{"id": 4, "content": None}]]),
)


def changed(value, draw):
    """Return a JSON value in which one part, at a depth by chance, is another value."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 3)) == 0:
        return draw(ODD)
    key = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
    copy = value.copy()
    if draw(st.integers(0, 4)) == 0:
        del copy[key]
    else:
        copy[key] = changed(copy[key], draw)
    return copy


PIECES = [
    "{{ messages }}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% generation %}",
    "{% endgeneration %}",
    "{{ m }}",
]
PIECES += [
    "{{ m.content|tojson }}",
    "{% if tools %}",
    "{% endif %}",
    "{{",
    "}}",
    "{%",
    "{#",
    "x",
    "{{ bos_token * 9 }}",
]
PIECES += ["{{ messages[0].__class__.__mro__ }}", "{{ raise_exception.__globals__ }}", "{% break %}", "{{ loop }}"]
CONFIG = {"chat_template": PLAIN, "bos_token": {"content": "<s>"}, "eos_token": "<s>"}


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_changed_tokenizers_and_templates_are_used_or_refused(data):
    described, config, row = (changed(value, data.draw) for value in (TOKENIZER, CONFIG, ROW))
    if isinstance(config, dict) and data.draw(st.booleans()):
        config["chat_template"] = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=8)))
    try:
        vocabulary = Vocabulary(json.dumps(described).encode(), config if isinstance(config, dict) else {})
        ChatTemplate(vocabulary).render(ROW["messages"])
        Sampler(vocabulary).sample(row if isinstance(row, dict) else ROW)
    except (InputError, ValueError):
        return  # a row that cannot be read is counted, and says why
