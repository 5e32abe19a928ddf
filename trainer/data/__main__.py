"""Print tokens and their labels as JSON: python -m trainer.data COUNT [--config FILE] [--section.key value ...]."""

import json
import sys

from trainer.config import JobConfig, load
from trainer.data.loader import Loader, RowLoader, Share
from trainer.data.rows import IGNORE
from trainer.data.source import build_loader
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import TrainerError
from trainer.models.decoder import model_args


def first_sequences(config: JobConfig, count: int) -> dict[str, object]:
    """Return the first `count` training sequences, and counts of all tokens and sequences, as a dict for JSON.

    `rows` has one entry per token of these sequences. `tokens` is the number of tokens in the whole training data.
    `left_over` is the number of tokens after the last full sequence.

    Raises:
        TrainerError: The training data do not exist or are too short.
    """
    seq_len = config.training.seq_len
    loader = build_loader(config, config.training, Share(batch=1), seq_len)
    total, sequences = loader.totals()
    rows = sequence_rows(config, loader, min(count, sequences))
    used = sequences * seq_len + 1
    return {
        "seq_len": seq_len,
        "tokens": total,
        "sequences": sequences,
        # Rows are padded and not cut out of one text, so that nothing is left over.
        "left_over": 0 if isinstance(loader, RowLoader) else total - used,
        "rows": rows,
    }


def sequence_rows(config: JobConfig, loader: Loader, count: int) -> list[dict[str, object]]:
    """Return a row for each token of the next `count` sequences: the token, and its label, which the model predicts."""
    tokenizer = load_tokenizer(config.model.hf_assets_path, model_args(config).vocab_size)
    result: list[dict[str, object]] = []
    # The range comes first: zip stops there, before it takes a further batch of the endless loader.
    for number, (inputs, labels) in zip(range(count), loader, strict=False):
        documents = [0] * inputs.shape[1] if loader.documents is None else loader.documents[0].tolist()
        values = zip(inputs[0].tolist(), labels[0].tolist(), documents, strict=True)
        result += [
            {
                "sequence": number,
                "position": i,
                "token": token,
                "text": tokenizer.name(token),
                "label": label,
                "label_text": "" if label == IGNORE else tokenizer.name(label),
                "trained": label != IGNORE,
                "role": "padding" if document < 0 else "",
                "document": document,
            }
            for i, (token, label, document) in enumerate(values)
        ]
    return result


if __name__ == "__main__":
    try:
        print(json.dumps(first_sequences(load(None, sys.argv[2:]), int(sys.argv[1]))))
    except TrainerError as error:
        sys.exit(f"error: {error}")
