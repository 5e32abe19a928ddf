"""The documents to train on: synthetic text from a seed, or local files."""

import importlib
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from trainer.config.refusals import NO_DATA
from trainer.config.sections import Training
from trainer.errors import DataError

SUFFIXES = (".txt", ".jsonl", ".json", ".parquet")
SYLLABLES = [head + tail for head in "bcdfglmnprstv" for tail in "aeiou"]
SYNTHETIC_DOCUMENTS = 2000
HELD_OUT_DOCUMENTS = 100


def documents(config: Training, seed: int) -> Iterator[str]:
    """Yield the texts to train on.

    Raises:
        DataError: The path does not exist or holds no text, or a data set is named without a path.
    """
    if config.dataset_path:
        yield from local_documents(Path(config.dataset_path))
    elif config.dataset == "synthetic" or config.allow_synthetic:
        yield from islice(synthetic_documents(seed), SYNTHETIC_DOCUMENTS)
    else:
        raise DataError(f"data set {config.dataset!r} is not shipped", NO_DATA.format(section="training"))


def held_out_documents(seed: int) -> Iterator[str]:
    """Yield synthetic documents for validation, on which the model is not trained.

    They are made of the same words as the training documents: the generator with this seed yields them after the
    training documents.
    """
    return islice(synthetic_documents(seed), SYNTHETIC_DOCUMENTS, SYNTHETIC_DOCUMENTS + HELD_OUT_DOCUMENTS)


def synthetic_documents(seed: int) -> Iterator[str]:
    """Yield texts of a hundred invented words without end.

    Only four words may follow each word, so the text is easy to learn.
    """
    # A text that is the same for each seed is wanted here, not a secret.
    rng = random.Random(seed)  # noqa: S311
    # Sorted, because the order of a set of strings differs between processes, and with it the text.
    words = sorted({"".join(rng.choices(SYLLABLES, k=rng.randint(1, 3))) for _ in range(120)})[:100]
    following = {word: rng.sample(words, 4) for word in words}
    while True:
        word, sentence = rng.choice(words), []
        for _ in range(rng.randint(60, 120)):
            sentence.append(word)
            word = rng.choice(following[word])
        yield " ".join(sentence) + "."


def local_files(path: Path) -> list[Path]:
    """Return a file, or all files with data below a folder, sorted by name.

    Raises:
        DataError: The folder has none.
    """
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: no text files", f"put files there that end in {', '.join(SUFFIXES)}")
    return files


def local_documents(path: Path) -> Iterator[str]:
    """Yield the documents of a text, JSON or Parquet file, or of all such files below a folder."""
    for file in local_files(path):
        if file.suffix == ".parquet":
            yield from parquet_texts(file)
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise DataError(f"{file}: {error.strerror}", "give --training.dataset_path a file or folder") from error
        yield from [text] if file.suffix == ".txt" else json_texts(file, text)


def json_texts(file: Path, text: str) -> Iterator[str]:
    """Yield the field "text" of every line of `text`, the JSON lines of `file`."""
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            yield json.loads(line)["text"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{file}, line {number}: not JSON with a text", 'write one {"text": "..."} per line'
            ) from error


def parquet_texts(file: Path) -> Iterator[str]:
    """Yield the column "text" of a Parquet file, a part of it at a time.

    Raises:
        DataError: The package pyarrow is not installed, or the file has no such column.
    """
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError(
            f"{file}: the package pyarrow is not installed", "pip install pyarrow, or use .jsonl"
        ) from error
    try:
        for batch in parquet.ParquetFile(file).iter_batches(columns=["text"]):
            yield from (text for text in batch.column("text").to_pylist() if text)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{file}: {error}", 'give a file with a column "text"') from error
