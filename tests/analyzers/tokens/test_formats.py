"""Formats that the rules were not written for: thoughts, several marks for an answer, questions as plain words."""

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from analyzers import tokens
from analyzers.report import Severity
from analyzers.store import Options

README = Path(__file__).parents[3] / "README.md"
WORDS = ["run", "memory", "trace", "step", "rank", "loss", "why", "the", "a", "of"]
THOUGHTS = ["<|im_end|>", "<|endoftext|>", "<|im_start|>", "<think>", "</think>"]
HARMONY = ["<|return|>", "<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|endoftext|>"]
MISTRAL = ["</s>", "<s>", "[INST]", "[/INST]"]
PHI = ["<|endoftext|>", "<|user|>", "<|assistant|>", "<|end|>"]


def words(rng):
    return " ".join(rng.choices(WORDS, k=8))


def thoughtful(rng, fault):
    parts = []
    for _ in range(rng.randint(1, 3)):
        parts += [(f"<|im_start|>user\n{words(rng)}<|im_end|>\n", False), ("<|im_start|>assistant\n", False)]
        parts += [("<think>\n\n</think>\n\n", fault == "thought"), (words(rng), True), ("<|im_end|>", fault != "end")]
        parts += [("\n", False)]
    return parts


def harmony(rng, fault):
    return [
        (f"<|start|>system<|message|>{words(rng)}<|end|>", False),
        (f"<|start|>user<|message|>{words(rng)}<|end|>", fault == "user"),
        ("<|start|>assistant<|channel|>analysis<|message|>", False),
        (words(rng), True),
        ("<|end|>", True),
        ("<|start|>assistant<|channel|>final<|message|>", False),
        (words(rng), True),
        ("<|return|>", True),
    ]


def mistral(rng, fault):
    turn = [(f"[INST]{words(rng)}[/INST]", fault == "user"), (words(rng), True), ("</s>", fault != "end")]
    return [("<s>", False), *turn * 2]


def phi(rng, fault):
    asked = (f"<|user|>\n{words(rng)}<|end|>\n", False)
    turn = [asked, ("<|assistant|>\n", fault == "opener"), (words(rng), True), ("<|end|>", True), ("\n", True)]
    return [*turn * 2, ("<|endoftext|>", False)]


def questions(rng, fault):
    asked = (f"Question: {words(rng)}\nAnswer:", fault == "user")
    end = [] if fault == "no end" else [("<|endoftext|>", fault != "end")]
    return [asked, (f" {words(rng)}", True), *end]


@pytest.mark.parametrize(
    ("specials", "make", "fault", "expected"),
    [
        (THOUGHTS, thoughtful, "", None),
        (THOUGHTS, thoughtful, "thought", None),
        (THOUGHTS, thoughtful, "end", "tokens.end_not_trained"),
        (HARMONY, harmony, "", None),
        (HARMONY, harmony, "user", "tokens.user_trained"),
        (MISTRAL, mistral, "", None),
        (MISTRAL, mistral, "user", "tokens.all_trained"),
        (MISTRAL, mistral, "end", "tokens.end_not_trained"),
        (PHI, phi, "", None),
        (PHI, phi, "opener", "tokens.template_trained"),
        (["<|endoftext|>"], questions, "", None),
        (["<|endoftext|>"], questions, "user", "tokens.all_trained"),
        (["<|endoftext|>"], questions, "end", "tokens.end_not_trained"),
        (["<|endoftext|>"], questions, "no end", "tokens.no_end_token"),
    ],
)
def test_mistakes_in_other_formats(specials, make, fault, expected, tmp_path):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([README.read_text()], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": specials[0]}))
    rng, lines = random.Random(1), []
    for _ in range(20):
        row = {"input_ids": [], "labels": []}
        for text, trained in make(rng, fault):
            ids = tokenizer.encode(text).ids
            row["input_ids"] += ids
            row["labels"] += ids if trained else [-100] * len(ids)
        lines.append(json.dumps(row) + "\n")
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    report = tokens.analyze(tokens.find_files([tmp_path / "rows.jsonl"], tmp_path), Options(cache=False))
    found = [finding.id for finding in report.findings if finding.severity is not Severity.INFO]
    assert (found[:1] or [None]) == [expected], report.verdict.sentence
    if expected == "tokens.template_trained":
        assert report.findings[0].title == "Tokens that start an answer are trained in 20 of 20 rows"
    if expected == "tokens.end_not_trained":
        rows, token = [fact.text for fact in report.findings[0].evidence]
        assert rows.endswith("; `workbench tokens` with `--row 0` shows the tokens and labels of row 0")
        assert token.endswith("(end of the answer) is not trained: its label is -100")
