"""Chat formats as their users write them: special tokens, how a conversation becomes text, and a chat template."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[2]
Piece = tuple[str, str, str]
"""A piece of the text of a conversation: its text, the role that it belongs to, and open, content or end."""
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Family:
    """A chat format with its tokenizer."""

    name: str
    specials: tuple[str, ...]
    pieces: Callable[[Messages], list[Piece]]
    template: str
    bos: str | None
    eos: str
    pad: str
    sentencepiece: bool = False


def chatml(messages: Messages) -> list[Piece]:
    result = []
    for message in messages:
        role = message["role"]
        result += [(f"<|im_start|>{role}\n", role, "open"), (message["content"], role, "content")]
        result += [("<|im_end|>", role, "end"), ("\n", role, "space")]
    return result


def llama3(messages: Messages) -> list[Piece]:
    result = [("<|begin_of_text|>", "", "bos")]
    for message in messages:
        role = message["role"]
        result += [(f"<|start_header_id|>{role}<|end_header_id|>\n\n", role, "open")]
        result += [(message["content"], role, "content"), ("<|eot_id|>", role, "end")]
    return result


def mistral(messages: Messages) -> list[Piece]:
    result = [("<s>", "", "bos")]
    system = ""
    for message in messages:
        if message["role"] == "system":
            system = message["content"] + "\n\n"
        elif message["role"] == "user":
            result += [("[INST] ", "user", "open"), (system + message["content"], "user", "content")]
            result += [(" [/INST]", "assistant", "open")]
            system = ""
        elif message["role"] == "assistant":
            result += [(" " + message["content"], "assistant", "content"), ("</s>", "assistant", "end")]
    return result


def gemma(messages: Messages) -> list[Piece]:
    result = [("<bos>", "", "bos")]
    for message in messages:
        name = {"assistant": "model"}.get(message["role"], message["role"])
        result += [
            (f"<start_of_turn>{name}\n", message["role"], "open"),
            (message["content"], message["role"], "content"),
        ]
        result += [("<end_of_turn>", message["role"], "end"), ("\n", message["role"], "space")]
    return result


def zephyr(messages: Messages) -> list[Piece]:
    result = []
    for message in messages:
        role = message["role"]
        result += [(f"<|{role}|>\n", role, "open"), (message["content"], role, "content")]
        result += [("</s>", role, "end"), ("\n", role, "space")]
    return result


def alpaca(messages: Messages) -> list[Piece]:
    first = "Below is an instruction that describes a task. Write a response that completes the request.\n\n"
    result = [("<s>", "", "bos"), (first, "system", "content")]
    for message in messages:
        if message["role"] == "user":
            result += [("### Instruction:\n", "user", "open"), (message["content"] + "\n\n", "user", "content")]
        elif message["role"] == "assistant":
            result += [("### Response:\n", "assistant", "open"), (message["content"], "assistant", "content")]
            result += [("</s>", "assistant", "end")]
    return result


def vicuna(messages: Messages) -> list[Piece]:
    first = "A chat between a curious user and an artificial intelligence assistant. "
    result = [("<s>", "", "bos"), (first, "system", "content")]
    for message in messages:
        if message["role"] == "user":
            result += [("USER: ", "user", "open"), (message["content"] + " ", "user", "content")]
        elif message["role"] == "assistant":
            result += [("ASSISTANT:", "assistant", "open"), (" " + message["content"], "assistant", "content")]
            result += [("</s>", "assistant", "end")]
    return result


def deepseek(messages: Messages) -> list[Piece]:
    result = [("<｜begin▁of▁sentence｜>", "", "bos")]
    for message in messages:
        if message["role"] == "system":
            result.append((message["content"], "system", "content"))
        elif message["role"] == "user":
            result += [("<｜User｜>", "user", "open"), (message["content"], "user", "content")]
        elif message["role"] == "assistant":
            result += [("<｜Assistant｜>", "assistant", "open"), (message["content"], "assistant", "content")]
            result += [("<｜end▁of▁sentence｜>", "assistant", "end")]
    return result


def own(messages: Messages) -> list[Piece]:
    """A format that nobody else uses: only its chat template says how it is read."""
    result = []
    for message in messages:
        role = message["role"]
        sign = {"user": "<<ask>>", "assistant": "<<reply>>", "system": "<<rules>>", "tool": "<<tool>>"}[role]
        result += [(sign, role, "open"), (message["content"], role, "content"), ("<<stop>>", role, "end")]
    return result


def plain(messages: Messages) -> list[Piece]:
    """A prompt and its completion without any markup."""
    result = []
    for message in messages:
        if message["role"] == "user":
            result.append((message["content"] + "\n", "user", "content"))
        elif message["role"] == "assistant":
            result += [(message["content"], "assistant", "content"), ("<|endoftext|>", "assistant", "end")]
    return result


IN_TURN = (
    "{{% for m in messages %}}{{{{ '{open}'.replace('ROLE', m['role']) + m['content'] + '{end}' }}}}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{{{{ '{open}'.replace('ROLE', 'assistant') }}}}{{% endif %}}"
)
PAIRED = (
    "{{{{ '{first}' }}}}{{% for m in messages %}}{{% if m['role'] == 'user' %}}{{{{ '{user}' + m['content'] + '{user_end}' }}}}"
    "{{% elif m['role'] == 'assistant' %}}{{{{ '{answer}' + m['content'] + '{end}' }}}}{{% endif %}}{{% endfor %}}"
)
FAMILIES = {
    family.name: family
    for family in (
        Family("chatml", ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), chatml,
               IN_TURN.format(open="<|im_start|>ROLE\\n", end="<|im_end|>\\n"), None, "<|im_end|>", "<|endoftext|>"),
        Family("llama3", ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|pad|>"), llama3,
               "{{ bos_token }}" + IN_TURN.format(open="<|start_header_id|>ROLE<|end_header_id|>\\n\\n", end="<|eot_id|>"),
               "<|begin_of_text|>", "<|eot_id|>", "<|pad|>"),
        Family("mistral", ("<unk>", "<s>", "</s>"), mistral,
               PAIRED.format(first="<s>", user="[INST] ", user_end=" [/INST]", answer=" ", end="</s>"), "<s>", "</s>", "</s>", True),
        Family("gemma", ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), gemma,
               "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\\n'"
               " + m['content'] + '<end_of_turn>\\n' }}{% endfor %}", "<bos>", "<eos>", "<pad>", True),
        Family("zephyr", ("<unk>", "<s>", "</s>"), zephyr, IN_TURN.format(open="<|ROLE|>\\n", end="</s>\\n"), "<s>", "</s>", "</s>", True),
        Family("alpaca", ("<unk>", "<s>", "</s>"), alpaca,
               PAIRED.format(first="<s>Below is an instruction that describes a task. Write a response that completes the request.\\n\\n",
                             user="### Instruction:\\n", user_end="\\n\\n", answer="### Response:\\n", end="</s>"), "<s>", "</s>", "<unk>"),
        Family("vicuna", ("<unk>", "<s>", "</s>"), vicuna,
               PAIRED.format(first="<s>A chat between a curious user and an artificial intelligence assistant. ",
                             user="USER: ", user_end=" ", answer="ASSISTANT: ", end="</s>"), "<s>", "</s>", "<unk>", True),
        Family("deepseek", ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"), deepseek,
               PAIRED.format(first="<｜begin▁of▁sentence｜>", user="<｜User｜>", user_end="", answer="<｜Assistant｜>", end="<｜end▁of▁sentence｜>"),
               "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        Family("own", ("<<ask>>", "<<reply>>", "<<rules>>", "<<tool>>", "<<stop>>", "<<pad>>"), own,
               "{% for m in messages %}{{ {'user': '<<ask>>', 'assistant': '<<reply>>', 'system': '<<rules>>', 'tool': '<<tool>>'}[m['role']]"
               " + m['content'] + '<<stop>>' }}{% endfor %}", None, "<<stop>>", "<<pad>>"),
        Family("plain", ("<|endoftext|>", "<|pad|>"), plain, "", None, "<|endoftext|>", "<|pad|>"),
    )
}  # fmt: skip


def write_tokenizer(family: Family, folder: Path) -> Tokenizer:
    """Train a tokenizer of about a thousand tokens on this project's documentation; write it as a model's folder has it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(
        models.BPE(byte_fallback=family.sentencepiece, unk_token="<unk>" if family.sentencepiece else None)
    )
    if family.sentencepiece:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        alphabet: list[str] = []
        specials = [
            *family.specials,
            *(["<unk>"] if "<unk>" not in family.specials else []),
            *(f"<0x{byte:02X}>" for byte in range(256)),
        ]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet, specials = pre_tokenizers.ByteLevel.alphabet(), list(family.specials)
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(
        [(ROOT / "docs" / "index.md").read_text(), (ROOT / "CONTRIBUTING.md").read_text()], trainer
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": family.bos, "eos_token": {"content": family.eos}, "pad_token": family.pad}
    config |= {"chat_template": family.template} if family.template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer
