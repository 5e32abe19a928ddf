"""Synthetic text from a seed, for training and validation without any files."""

import random
from collections.abc import Iterator
from itertools import islice

_SYLLABLES = [head + tail for head in "bcdfglmnprstv" for tail in "aeiou"]
_SYNTHETIC_DOCUMENTS = 2000
_HELD_OUT_DOCUMENTS = 100


def training_documents(seed: int) -> Iterator[str]:
    """Yield the synthetic documents for training: the first 2,000 documents of `synthetic_documents`."""
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
