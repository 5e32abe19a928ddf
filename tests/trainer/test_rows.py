"""Fine-tune on rows: masks by role, packing without attention between rows, and the same training on any mesh."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from trainer.config import JobConfig
from trainer.config.shape import YarnScaling
from trainer.data.loader import RowLoader, Share
from trainer.data.rows import IGNORE, ChatTemplate, TrainedRow, compiled, conversation, is_row, read_row
from trainer.data.tokenizer import ByteTokenizer, FileTokenizer, load_tokenizer
from trainer.errors import DataError
from trainer.local_data import Files, InMemory, Position
from trainer.models.decoder import build_model, init_weights, model_args, separate_documents

tokenizers = pytest.importorskip("tokenizers")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tokenizer that is small enough for the debug model, with a chat template."""
    folder = tmp_path_factory.mktemp("assets")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the user asks the assistant and the assistant answers"] * 9, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def chat(rng: random.Random) -> list[dict[str, str]]:
    words = ["the", "user", "asks", "answers", "and"]
    return [
        {"role": role, "content": " ".join(rng.choices(words, k=rng.randint(1, 6)))}
        for _ in range(rng.randint(1, 2))
        for role in ("user", "assistant")
    ]


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(3)
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    path.write_text("".join(json.dumps({"messages": chat(rng)}) + "\n" for _ in range(200)))
    return path


def test_what_the_assistant_writes_is_trained(assets: Path) -> None:
    tokenizer = FileTokenizer(assets)
    messages = [
        {"role": "user", "content": "asks"},
        {"role": "assistant", "content": "answers"},
        {"role": "user", "content": "and"},
        {"role": "assistant", "content": "the user"},
    ]
    row = conversation(messages, tokenizer, ChatTemplate(tokenizer))
    learned = [token for token, trained in zip(row.tokens, row.trained, strict=True) if trained]
    assert tokenizer.encoder.decode(learned, skip_special_tokens=False) == "answers<|im_end|>the user<|im_end|>"


def test_templates_may_use_what_transformers_offers_them() -> None:
    """Published templates write the date, leave loops early, and mark what the assistant writes."""
    source = (
        "{{ strftime_now('%Y') }}|{% for m in messages %}{% if m.role == 'stop' %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    )
    messages = [{"role": "user", "content": "a"}, {"role": "stop", "content": "b"}, {"role": "user", "content": "c"}]
    assert compiled(source).render(messages=messages) == "2026-01-01|a;"


def test_an_answer_of_weight_zero_is_not_trained(assets: Path) -> None:
    tokenizer = FileTokenizer(assets)
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]
    assert not any(conversation(messages, tokenizer, ChatTemplate(tokenizer)).trained)


def test_the_command_finds_no_mistake_in_what_is_trained(assets: Path, conversations: Path, tmp_path: Path) -> None:
    """The trainer and `workbench tokens`, which share no code, agree on what the assistant writes."""
    from analyzers import tokens
    from analyzers.store import Options

    tokenizer = FileTokenizer(assets)
    rows = [
        {"input_ids": row.tokens, "labels": [t if on else IGNORE for t, on in zip(*row, strict=True)]}
        for record in Files([conversations]).records(Position())
        for row in [read_row(record, tokenizer, ChatTemplate(tokenizer))]
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = tokens.analyze(tokens.find_files([path], assets), Options(cache=False))
    assert not report.findings
    assert report.data.template == "ChatML"
    assert report.data.statistics.roles["assistant"] == report.data.statistics.trained_roles["assistant"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "JSONDecodeError"),
        ('{"text": "a"}', "KeyError"),
        ('{"input_ids": [1, 2], "labels": [1]}', "2 token ids, but 1 labels"),
        ('{"input_ids": [1, 2], "labels": [2, -100]}', "shifted already"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "conversations need a chat template"),
    ],
)
def test_lines_that_are_no_rows_are_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=reason):
        RowLoader(Files([path]), 8, Share(1), ByteTokenizer())


@pytest.mark.parametrize(("fields", "expected"), [(["text"], False), (["prompt", "completion"], True), ([], False)])
def test_text_is_told_from_rows(fields: list[str], *, expected: bool) -> None:
    assert is_row(dict.fromkeys(fields, "a")) is expected


def test_a_tokenizer_must_fit_the_model(assets: Path) -> None:
    with pytest.raises(DataError, match="the model 100"):
        load_tokenizer(str(assets), 100)


def loader_of(rows: list[TrainedRow], seq_len: int, share: Share) -> RowLoader:
    """Return a loader of rows that are tokens already."""
    labels = [[token if on else IGNORE for token, on in zip(*row, strict=True)] for row in rows]
    fields = [{"input_ids": row.tokens, "labels": each} for row, each in zip(rows, labels, strict=True)]
    return RowLoader(InMemory(fields), seq_len, share)


ROWS = [TrainedRow([1, 2, 3], [False, True, True]), TrainedRow([4, 5], [False, True]), TrainedRow([6] * 9, [True] * 9)]


def test_rows_are_packed_whole() -> None:
    loader = loader_of(ROWS, 5, Share(1))
    inputs, labels = next(iter(loader))
    assert inputs.tolist() == [[1, 2, 3, 4, 5]]
    # Neither the first token of a row nor padding has a label.
    assert labels.tolist() == [[2, 3, IGNORE, 5, IGNORE]]
    assert loader.documents is not None
    assert loader.documents.tolist() == [[0, 0, 0, 1, 1]]
    assert loader.labels_ahead(1) == 5
    assert loader.cut == 1
    assert loader.totals().sequences == 2


def test_ranks_share_rows_and_resume() -> None:
    rows = [TrainedRow([i, i + 1, i + 2], [False, True, True]) for i in range(40)]
    whole = iter(loader_of(rows, 2, Share(4)))
    halves = [loader_of(rows, 2, Share(2, rank=rank, ranks=2)) for rank in (0, 1)]
    expected = [next(whole)[0].tolist() for _ in range(3)]
    assert expected[0] == [row for half in halves for row in next(iter(half))[0].tolist()]
    again = loader_of(rows, 2, Share(4))
    again.load_state_dict(halves[0].state_dict())
    assert next(iter(again))[0].tolist() == expected[1]


def small_model(name: str = "llama3", scaling: YarnScaling | None = None) -> Any:
    config = JobConfig()
    config.model.name = name
    built = build_model(config, replace(model_args(config), rope_scaling=scaling))
    built.to_empty(device="cpu")
    init_weights(built, 1)
    return built


@pytest.mark.parametrize("scaling", [None, YarnScaling(4.0, 32, mscale=0.7, mscale_all_dim=1.5)], ids=["", "yarn"])
@pytest.mark.parametrize("name", ["llama3", "qwen3", "llama4", "deepseek_v3", "qwen3_moe"])
def test_packed_rows_do_not_see_each_other(name: str, scaling: YarnScaling | None) -> None:
    """The logits of a row are the same alone, at positions from 0 on, and behind other rows, where positions run on."""
    model = small_model(name, scaling)
    tokens = torch.arange(24)[None] % 7
    documents = torch.tensor([[0] * 9 + [1] * 10 + [2] * 5])
    attention = separate_documents([model])
    with torch.no_grad():
        attention.separate(documents)
        packed = model(tokens)
        attention.separate(None)
        for number in range(3):
            part = documents[0] == number
            assert torch.allclose(packed[:, part], model(tokens[:, part]), atol=1e-5)
        assert not torch.allclose(packed[:, 9:], model(tokens)[:, 9:], atol=1e-3)


@pytest.mark.slow
def test_fine_tuning_is_the_same_on_any_mesh_and_leaves(
    train: Callable[..., Any], assets: Path, conversations: Path, tmp_path: Path
) -> None:
    """A fine-tune of a model of transformers on FSDP2 x TP equals that of one rank, resumes on another mesh, and loads
    there again.
    """
    transformers = pytest.importorskip("transformers")
    folder = shutil.copytree(assets, tmp_path / "model")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    described = transformers.Qwen3Config(**shape, intermediate_size=64, head_dim=16, vocab_size=320)
    described.tie_word_embeddings = True
    transformers.AutoModelForCausalLM.from_config(described).save_pretrained(folder)
    model = ["--model.name", "qwen3", "--model.flavor", "hf_assets", "--model.hf_assets_path", str(folder)]
    loading = ["--checkpoint.enable", "--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", str(folder)]
    data = ["--training.dataset_path", str(conversations), *model, *loading]
    batch = "--training.local_batch_size"
    one = train(tmp_path / "one", 1, *data, batch, "4", "--checkpoint.load_only")
    assert one.returncode == 0, one.output
    saving = ["--checkpoint.interval", "3", "--checkpoint.no_last_save_model_only"]
    mesh = ["--parallelism.tensor_parallel_degree", "2"]
    four = train(tmp_path / "four", 4, *data, batch, "2", *mesh, *saving, "--training.steps", "3")
    assert four.returncode == 0, four.output
    losses = four.losses()
    two = train(tmp_path / "four", 2, *data, batch, "2", "--checkpoint.last_save_in_hf")
    assert two.returncode == 0, two.output
    assert losses | two.losses() == pytest.approx(one.losses(), rel=1e-4)
    assert one.losses()[6] < one.losses()[1]
    exported = two.folder / "checkpoint" / "step-6"
    _, report = transformers.AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not any(report.values()), report
    assert (exported / "tokenizer.json").read_bytes() == (assets / "tokenizer.json").read_bytes()


@pytest.mark.slow
def test_the_tutorial_fine_tunes(tmp_path: Path) -> None:
    """The command of the tutorial trains on two ranks, and what it exports has no mistake to find."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "tutorials" / "masks.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("workbench launch"))
    words = [*command.split()[1:], "--job.dump_folder", str(tmp_path), "--training.steps", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *words], cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    exported = tmp_path / "checkpoint" / "step-3"
    assert (exported / "tokenizer.json").is_file()
    assert (exported / "model.safetensors.index.json").is_file()


def test_the_loss_is_that_of_the_labels_alone() -> None:
    from trainer.step import summed_loss

    logits, labels = torch.randn(2, 4, 8), torch.tensor([[1, IGNORE, 2, IGNORE], [IGNORE, 3, IGNORE, IGNORE]])
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert torch.allclose(summed_loss(logits, labels, 3.0), expected)
