"""Write the data of the tutorial: a tokenizer that fits the debug model, conversations, and some with a wrong mask.

python examples/fine_tuning/make_data.py
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINGS = {"red": "a rose", "green": "a leaf", "blue": "the sea", "white": "snow", "black": "coal", "yellow": "the sun"}


def conversation(rng: random.Random) -> list[dict[str, str]]:
    messages = []
    for colour in rng.sample(list(THINGS), rng.randint(1, 3)):
        messages.append({"role": "user", "content": f"What is {colour}?"})
        messages.append({"role": "assistant", "content": f"{THINGS[colour].capitalize()} is {colour}."})
    return messages


def write_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials, alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder = FOLDER / "model"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    return tokenizer


def wrong_row(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """Mask the first question alone, as a mask by the length of the prompt does, and the token that ends a turn."""
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    prompt = text[: text.index("assistant\n") + len("assistant\n")]
    ids, length = tokenizer.encode(text).ids, len(tokenizer.encode(prompt).ids)
    end = tokenizer.token_to_id("<|im_end|>")
    labels = [-100 if i < length or token == end else token for i, token in enumerate(ids)]
    return {"input_ids": ids, "labels": labels}


def write_lines(name: str, rows: list[dict[str, object]]) -> None:
    (FOLDER / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    rng = random.Random(5)  # noqa: S311
    chats = [conversation(rng) for _ in range(80)]
    tokenizer = write_tokenizer([f"{m['role']}\n{m['content']}\n" for chat in chats for m in chat])
    write_lines("chats.jsonl", [{"messages": chat} for chat in chats])
    write_lines("wrong.jsonl", [wrong_row(tokenizer, chat) for chat in chats[:12]])
