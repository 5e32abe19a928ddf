"""Build the loader for the configured data: text that is cut into sequences, or rows for fine-tuning."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trainer.config import JobConfig
from trainer.config.refusals import NO_DATA
from trainer.config.sections import Training
from trainer.data.loader import Loader, RowLoader, Share
from trainer.data.rows import is_row
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import DataError
from trainer.local_data import Data, Files, InMemory, Position, Split, local_files
from trainer.models.decoder import model_args

_SYLLABLES = [head + tail for head in "bcdfglmnprstv" for tail in "aeiou"]
_SYNTHETIC_DOCUMENTS = 2000
_HELD_OUT_DOCUMENTS = 100


def training_documents(seed: int) -> Iterator[str]:
    return islice(synthetic_documents(seed), _SYNTHETIC_DOCUMENTS)


def held_out_documents(seed: int) -> Iterator[str]:
    """Yield synthetic documents for validation, on which the model is not trained.

    They are the documents after the training documents in `synthetic_documents`, so they have the same words.
    """
    return islice(synthetic_documents(seed), _SYNTHETIC_DOCUMENTS, _SYNTHETIC_DOCUMENTS + _HELD_OUT_DOCUMENTS)


def synthetic_documents(seed: int) -> Iterator[str]:
    """Yield an endless series of texts, made of a hundred invented words.

    Only four different words may follow each word, so the text is easy to learn.
    """
    # A text that is the same for each seed is wanted here, not a secret.
    rng = random.Random(seed)  # noqa: S311
    # Sorted, because the order of a set of strings differs between processes, and with it the text.
    words = sorted({"".join(rng.choices(_SYLLABLES, k=rng.randint(1, 3))) for _ in range(120)})[:100]
    following = {word: rng.sample(words, 4) for word in words}
    while True:
        word, sentence = rng.choice(words), []
        for _ in range(rng.randint(60, 120)):
            sentence.append(word)
            word = rng.choice(following[word])
        yield " ".join(sentence) + "."


_CHECKED_AT_START = 8 << 20
"""Data of at most this many bytes are read once before the first step, so that a bad record is found at once."""


def build_loader(config: JobConfig, source: Training, share: Share, seq_len: int, split: Split = Split.TRAIN) -> Loader:
    """Return the loader of a rank's share of the data that `source` names, with the configured tokenizer.

    Raises:
        DataError: The data do not exist, or the configured parallelism does not support them.
    """
    tokenizer = load_tokenizer(config.model.hf_assets_path, model_args(config).vocab_size)
    data = _data_of(source, config.debug.seed or 0, split)
    first = next(iter(data.records(Position())), None)
    # Without any record, the loader for texts raises the error.
    if first is None or not is_row(first.fields):
        loader = Loader(data, seq_len, share, tokenizer)
    else:
        _check_parallelism(config)
        loader = RowLoader(data, seq_len, share, tokenizer)
    if isinstance(data, Files) and data.size <= _CHECKED_AT_START:
        loader.totals()
    return loader


def _data_of(source: Training, seed: int, split: Split = Split.TRAIN) -> Data:
    """Return the data at the path that `source` names; without a path, synthetic text made from `seed`.

    Raises:
        DataError: The path does not exist or has no data, or a data set is named without a path.
    """
    if source.dataset_path:
        path = Path(source.dataset_path)
        # Copies of c4 have a folder for each variant; torchtitan, too, trains on this one.
        is_c4 = source.dataset.startswith("c4") and (path / "en").is_dir()
        return Files(local_files(path / "en" if is_c4 else path, split))
    if source.dataset == "synthetic":
        return InMemory({"text": text} for text in training_documents(seed))
    raise DataError(f"data set {source.dataset!r} is not shipped", NO_DATA.format(section="training"))


def _check_parallelism(config: JobConfig) -> None:
    """Raise DataError if the configured parallelism would let the rows of a sequence attend to each other.

    This is so for context parallelism, pipeline parallelism and torch.compile.
    """
    parallelism = config.parallelism
    for key, is_on in (
        ("parallelism.context_parallel_degree", parallelism.context_parallel_degree > 1),
        ("parallelism.pipeline_parallel_degree", parallelism.pipeline_parallel_degree > 1),
        ("compile.enable", config.compile.enable),
    ):
        if is_on:
            raise DataError(
                f"rows for fine-tuning do not go with {key}: each row attends to itself alone",
                f"turn off {key}; FSDP, DDP and tensor parallelism are possible",
            )
