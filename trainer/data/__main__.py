"""Print tokens and their labels as JSON: python -m trainer.data COUNT [--config FILE] [--section.key value ...]."""

import json
import sys
from itertools import pairwise

from trainer.config import JobConfig, load
from trainer.data.loader import Loader, Share
from trainer.data.text import documents
from trainer.data.tokenizer import BOS, EOS
from trainer.errors import TrainerError

SPECIAL = {BOS: "<bos>", EOS: "<eos>", ord(" "): "␣"}


def first_sequences(config: JobConfig, count: int) -> dict[str, object]:
    """Return the first `count` training sequences as a dict: `rows` has one row per token, next to token counts.

    `tokens` is the number of tokens in the whole training text; `left_over` counts those after the last full sequence.

    Raises:
        TrainerError: The training text does not exist or is too short.
    """
    seq_len = config.training.seq_len
    loader = Loader(documents(config.training, config.debug.seed or 0), seq_len, Share(batch=1))
    sequences = min(count, loader.sequences)
    rows = [row for number in range(sequences) for row in sequence(loader, number)]
    total = len(loader.tokens)
    return {
        "seq_len": seq_len,
        "tokens": total,
        "sequences": loader.sequences,
        "left_over": total - loader.sequences * seq_len - 1,
        "rows": rows,
    }


def sequence(loader: Loader, number: int) -> list[dict[str, object]]:
    """Return one row per position of sequence `number`: the token that the model reads, and the label to predict."""
    tokens = loader.sequence(number).tolist()
    return [
        {"sequence": number, "position": i, "token": a, "text": text(a), "label": b, "label_text": text(b)}
        for i, (a, b) in enumerate(pairwise(tokens))
    ]


def text(token: int) -> str:
    """Return a token as text: a printable ASCII character, the name of a special token, or the value of the byte."""
    return SPECIAL.get(token) or (chr(token) if 32 <= token < 127 else f"<{token:#04x}>")


if __name__ == "__main__":
    try:
        print(json.dumps(first_sequences(load(None, sys.argv[2:]), int(sys.argv[1]))))
    except TrainerError as error:
        sys.exit(f"error: {error}")
