"""The cases: data sets without a mask mistake, and data sets with one, in several formats and forms of files."""

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.masks.families import FAMILIES, Family, write_tokenizer
from benchmarks.masks.rows import Row, conversation, encoded, labels_of, padded, sentence, shifted, with_mask

ROWS = 24


@dataclass(frozen=True)
class Case:
    """A data set; `mistake` is the id of the finding that must be made, or None where there must be no fault."""

    name: str
    family: str
    write: Callable[["Maker"], None]
    mistake: str | None
    options: tuple[str, ...] = ()
    tokenizer: bool = True

    @property
    def is_kept(self) -> bool:
        """Whether the case is kept back, so that no rule is tuned on it."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 3 == 0


class Maker:
    """What a case needs to write its files: the tokenizer of its family, random conversations, and a folder."""

    def __init__(self, case: Case, folder: Path, tokenizers: Path) -> None:
        self.family: Family = FAMILIES[case.family]
        self.folder, self.tokenizer_folder = folder, tokenizers / case.family
        self.tokenizer = write_tokenizer(self.family, self.tokenizer_folder)
        self.rng = random.Random(case.name)
        self.pad = self.tokenizer.token_to_id(self.family.pad)
        self.eos = self.tokenizer.token_to_id(self.family.eos)
        self.bos = self.tokenizer.token_to_id(self.family.bos) if self.family.bos else None
        self.path = folder / "train.jsonl"

    def rows(self, count=ROWS, *, turns=(1, 3), system=0.3, tool=False, whole=None) -> list[Row]:
        return [
            encoded(
                self.family,
                self.tokenizer,
                self.messages(turns, system, tool),
                whole=(i % 2 == 0) if whole is None else whole,
            )
            for i in range(count)
        ]

    def messages(self, turns=(1, 3), system=0.3, tool=False):
        single = self.family.name in ("plain", "alpaca")
        count = 1 if single and turns == (1, 3) else self.rng.randint(*turns)
        return conversation(
            self.rng, count, system=self.rng.random() < system and self.family.name != "plain", tool=tool
        )

    def lines(self, rows: list[dict]) -> None:
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def tokenised(
        self, rows: list[Row], *, attention=False, positions=False, shift=0, ignore=-100, labels=None
    ) -> None:
        out = []
        for i, row in enumerate(rows):
            line = {
                "input_ids": row.ids,
                "labels": labels(i, row) if labels else shifted(labels_of(row, ignore=ignore), shift),
            }
            line |= {"attention_mask": row.attention} if attention else {}
            line |= {"position_ids": row.positions} if positions else {}
            out.append(line)
        self.lines(out)

    def batch(self, rows: list[Row], *, names=("input_ids", "labels"), shift=0, attention=True, form="dict") -> None:
        import torch

        width = max(len(row.ids) for row in rows)
        rows = [padded(row, width, self.pad) for row in rows]
        ids, labels = (
            torch.tensor([row.ids for row in rows]),
            torch.tensor([shifted(labels_of(row), shift) for row in rows]),
        )
        self.path = self.folder / "batch.pt"
        whole: object = {names[0]: ids, names[1]: labels}
        if attention:
            whole |= {"attention_mask": torch.tensor([row.attention for row in rows])}
        if form == "tuple":
            whole = (ids, labels)
        if form == "list":
            whole = [{"input_ids": ids[i], "labels": labels[i]} for i in range(len(rows))]
        torch.save(whole, self.path)


def packed(rows: list[Row], length: int, *, reset=True) -> list[Row]:
    """Join rows until `length` is reached; positions begin anew with each, or run on."""
    result, current = [], Row()
    for row in rows:
        current = current.joined(row)
        if len(current.ids) >= length:
            result.append(current.cut(length))
            current = Row()
    if not reset:
        for row in result:
            row.positions[:] = list(range(len(row.ids)))
    return result


# Without a mistake


def answers_only(m: Maker) -> None:
    m.tokenised(m.rows())


def answers_and_line_end(m: Maker) -> None:
    def rule(i, role, part, answer, trained):
        return trained or (role == "assistant" and part == "space")

    m.tokenised([with_mask(row, rule) for row in m.rows()], attention=True)


def padded_right(m: Maker) -> None:
    rows = m.rows()
    m.tokenised([padded(row, max(len(r.ids) for r in rows), m.pad) for row in rows], attention=True)


def padded_left(m: Maker) -> None:
    rows = m.rows()
    m.tokenised([padded(row, max(len(r.ids) for r in rows), m.pad, left=True) for row in rows], attention=True)


def padded_without_attention(m: Maker) -> None:
    rows = m.rows()
    m.tokenised([padded(row, max(len(r.ids) for r in rows), m.pad) for row in rows])


def last_turn_only(m: Maker) -> None:
    m.tokenised(
        [
            with_mask(row, lambda i, role, part, answer, trained, row=row: trained and answer == max(row.answers))
            for row in m.rows(turns=(1, 4))
        ]
    )


def with_tools(m: Maker) -> None:
    m.tokenised(m.rows(tool=True))


def batch_dict(m: Maker) -> None:
    m.batch(m.rows())


def batch_list(m: Maker) -> None:
    m.batch(m.rows(), form="list")


def batch_shifted_tuple(m: Maker) -> None:
    m.batch(m.rows(), form="tuple", shift=1)


def batch_torchtune(m: Maker) -> None:
    m.batch(m.rows(), names=("tokens", "labels"), shift=1, attention=False)


def packed_with_resets(m: Maker) -> None:
    m.tokenised(packed(m.rows(60), 250), positions=True)


def cut_at_the_end(m: Maker) -> None:
    rows = m.rows(turns=(2, 4))
    limit = sorted(len(row.ids) for row in rows)[-4] - 3
    m.tokenised([row.cut(limit) for row in rows])


def pretraining_ids(m: Maker) -> None:
    out, stream = [], []
    for _ in range(120):
        text = " ".join(sentence(m.rng) for _ in range(m.rng.randint(2, 8)))
        stream += [
            *([m.bos] if m.bos is not None else []),
            *m.tokenizer.encode(text, add_special_tokens=False).ids,
            m.eos,
        ]
    for start in range(0, len(stream) - 128, 128):
        out.append({"input_ids": stream[start : start + 128], "labels": stream[start : start + 128]})
    m.lines(out)


def pretraining_with_positions(m: Maker) -> None:
    rows = []
    for _ in range(80):
        text = " ".join(sentence(m.rng) for _ in range(m.rng.randint(2, 8)))
        ids = [*([m.bos] if m.bos is not None else []), *m.tokenizer.encode(text, add_special_tokens=False).ids, m.eos]
        n = len(ids)
        rows.append(Row(ids, ["text"] * n, ["content"] * n, [-1] * n, [True] * n, list(range(n)), [1] * n))
    m.tokenised(packed(rows, 200), positions=True)


def raw_messages(m: Maker) -> None:
    m.lines([{"messages": m.messages()} for _ in range(ROWS)])


def raw_sharegpt(m: Maker) -> None:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    m.lines(
        [
            {"conversations": [{"from": names[x["role"]], "value": x["content"]} for x in m.messages()]}
            for _ in range(ROWS)
        ]
    )


def raw_completions(m: Maker) -> None:
    m.lines([{"prompt": "Why? " + sentence(m.rng) + "\n", "completion": sentence(m.rng)} for _ in range(ROWS)])


def raw_text(m: Maker) -> None:
    m.lines([{"text": " ".join(sentence(m.rng) for _ in range(5))} for _ in range(ROWS)])


def raw_weights(m: Maker) -> None:
    rows = []
    for _ in range(ROWS):
        messages = [dict(x) for x in m.messages(turns=(2, 3))]
        first = next(x for x in messages if x["role"] == "assistant")
        first["weight"] = 0
        rows.append({"messages": messages})
    m.lines(rows)


def completion_masks(m: Maker) -> None:
    m.lines([{"input_ids": row.ids, "completion_mask": [int(x) for x in row.mask]} for row in m.rows()])


def parquet_rows(m: Maker) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = m.rows()
    m.path = m.folder / "train.parquet"
    pq.write_table(pa.table({"input_ids": [r.ids for r in rows], "labels": [labels_of(r) for r in rows]}), m.path)


def prompt_beside_ids(m: Maker) -> None:
    out = []
    for row in m.rows(turns=(1, 1)):
        cut = next(i for i, role in enumerate(row.roles) if role == "assistant")
        prompt, completion = (
            m.tokenizer.decode(row.ids[:cut], skip_special_tokens=False),
            m.tokenizer.decode(row.ids[cut:], skip_special_tokens=False),
        )
        out.append({"prompt": prompt, "completion": completion, "input_ids": row.ids, "labels": labels_of(row)})
    m.lines(out)


# With a mistake


def masked(rule, **options):
    def write(m: Maker) -> None:
        m.tokenised([with_mask(row, rule) for row in m.rows(**options)], attention=True)

    return write


def some_rows(rule, every: int, **options):
    def write(m: Maker) -> None:
        m.tokenised([with_mask(row, rule) if i % every == 0 else row for i, row in enumerate(m.rows(**options))])

    return write


def inverted(i, role, part, answer, trained):
    return role == "user" and part == "content"


def second_answer_lost(i, role, part, answer, trained):
    return trained and answer != 1


def first_answer_only(i, role, part, answer, trained):
    return trained and answer == 0


def users_too(i, role, part, answer, trained):
    return trained or (role == "user" and part == "content")


def system_too(i, role, part, answer, trained):
    return trained or (role == "system" and part == "content")


def tools_too(i, role, part, answer, trained):
    return trained or (role == "tool" and part == "content")


def everything(i, role, part, answer, trained):
    return True


def no_end(i, role, part, answer, trained):
    return trained and part != "end"


def opener_too(i, role, part, answer, trained):
    return trained or (role == "assistant" and part == "open")


def all_after_first_prompt(m: Maker) -> None:
    rows = m.rows(turns=(2, 3))
    m.tokenised(
        [with_mask(row, lambda i, role, part, answer, trained, row=row: i >= row.mask.index(True)) for row in rows]
    )


def pad_is_end(m: Maker) -> None:
    rows = m.rows()
    width = max(len(row.ids) for row in rows)
    rows = [padded(row, width, m.eos) for row in rows]
    m.tokenised(
        [
            with_mask(row, lambda i, role, part, answer, trained, row=row: trained and row.ids[i] != m.eos)
            for row in rows
        ],
        attention=True,
    )


def late_by_one(m: Maker) -> None:
    rows = m.rows()
    m.tokenised(
        [
            with_mask(row, lambda i, role, part, answer, trained, row=row: trained and i > 0 and row.mask[i - 1])
            for row in rows
        ]
    )


def late_by_three(m: Maker) -> None:
    rows = m.rows()
    m.tokenised(
        [
            with_mask(
                row, lambda i, role, part, answer, trained, row=row: trained and i > 2 and all(row.mask[i - 3 : i])
            )
            for row in rows
        ]
    )


def early_by_one(m: Maker) -> None:
    rows = m.rows(whole=False)
    m.tokenised(
        [
            with_mask(row, lambda i, role, part, answer, trained, row=row: trained or row.mask[i + 1 : i + 2] == [True])
            for row in rows
        ]
    )


def shift_again(m: Maker) -> None:
    m.tokenised(m.rows(), shift=1)


def shift_by_two(m: Maker) -> None:
    m.tokenised(m.rows(), shift=2)


def shift_back(m: Maker) -> None:
    m.tokenised(m.rows(), shift=-1)


def no_shift_in_tuple(m: Maker) -> None:
    m.batch(m.rows(), form="tuple", shift=0)


def twice_in_tuple(m: Maker) -> None:
    m.batch(m.rows(), form="tuple", shift=2)


def shift_in_batch(m: Maker) -> None:
    m.batch(m.rows(), shift=1)


def some_empty(m: Maker) -> None:
    m.tokenised([with_mask(row, lambda *_: False) if i % 8 == 3 else row for i, row in enumerate(m.rows())])


def all_empty(m: Maker) -> None:
    m.tokenised([with_mask(row, lambda *_: False) for row in m.rows()])


def padding_trained(m: Maker) -> None:
    rows = m.rows()
    m.tokenised([padded(row, max(len(r.ids) for r in rows), m.pad, trained=True) for row in rows], attention=True)


def padding_trained_unseen(m: Maker) -> None:
    rows = m.rows()
    m.tokenised([padded(row, max(len(r.ids) for r in rows), m.pad, trained=True) for row in rows])


def padding_label_zero(m: Maker) -> None:
    rows = m.rows()
    width = max(len(row.ids) for row in rows)
    m.tokenised(
        [padded(row, width, m.pad) for row in rows],
        attention=True,
        labels=lambda i, row: [
            0 if not seen else label for label, seen in zip(labels_of(row), row.attention, strict=True)
        ],
    )


def answers_cut(m: Maker) -> None:
    rows = m.rows(turns=(1, 1))
    starts = sorted(row.mask.index(True) for row in rows)
    m.tokenised([row.cut(starts[len(starts) // 2]) for row in rows])


def answers_cut_by_option(m: Maker) -> None:
    m.lines([{"messages": m.messages(turns=(1, 1), system=1.0)} for _ in range(ROWS)])


def completions_cut_by_option(m: Maker) -> None:
    m.lines(
        [
            {"prompt": " ".join(sentence(m.rng) for _ in range(1 + 4 * (i % 3))), "completion": sentence(m.rng)}
            for i in range(ROWS)
        ]
    )


def packed_without_resets(m: Maker) -> None:
    m.tokenised(packed(m.rows(60, system=1.0), 250))


def packed_positions_run_on(m: Maker) -> None:
    m.tokenised(packed(m.rows(60, system=1.0), 250, reset=False), positions=True)


def packed_without_ends(m: Maker) -> None:
    stream, out = [], []
    for _ in range(120):
        text = " ".join(sentence(m.rng) for _ in range(m.rng.randint(2, 8)))
        stream += m.tokenizer.encode(text, add_special_tokens=False).ids
    for start in range(0, len(stream) - 128, 128):
        out.append({"input_ids": stream[start : start + 128], "labels": stream[start : start + 128]})
    m.lines(out)


def two_begins(m: Maker) -> None:
    rows = m.rows()
    begin = Row([m.bos], [""], ["bos"], [-1], [False], [0], [1])
    m.tokenised([begin.joined(row) for row in rows])


def other_ignore(m: Maker) -> None:
    m.tokenised(m.rows(), ignore=-1)


def labels_of_others(m: Maker) -> None:
    rows = m.rows()

    def labels(i, row):
        other = labels_of(rows[(i + 1) % len(rows)])
        return (other + [-100] * len(row.ids))[: len(row.ids)]

    m.tokenised(rows, labels=labels)


def no_end_in_text(m: Maker) -> None:
    rows = []
    for row in m.rows(turns=(1, 1)):
        keep = [
            i
            for i, (role, part) in enumerate(zip(row.roles, row.parts, strict=True))
            if not (role == "assistant" and part in ("end", "space"))
        ]
        rows.append(Row(*([column[i] for i in keep] for column in row.columns())))
    m.tokenised(rows)


def lengths_differ(m: Maker) -> None:
    m.tokenised(m.rows(), labels=lambda i, row: labels_of(row)[: -1 if i % 5 == 0 else None])


def no_answer(m: Maker) -> None:
    m.lines([{"messages": m.messages()[: -1 if i % 4 == 0 else None]} for i in range(ROWS)])


def empty_answer(m: Maker) -> None:
    rows = [m.messages() for _ in range(ROWS)]
    for row in rows[::6]:
        row[-1] = {"role": "assistant", "content": ""}
    m.lines([{"messages": row} for row in rows])


def empty_completion(m: Maker) -> None:
    m.lines([{"prompt": sentence(m.rng), "completion": "" if i % 6 == 0 else sentence(m.rng)} for i in range(ROWS)])


def user_weight(m: Maker) -> None:
    m.lines([{"messages": [x | {"train": True} for x in m.messages()]} for _ in range(ROWS)])


def generation_without_end(m: Maker) -> None:
    m.lines([{"messages": m.messages()} for _ in range(ROWS)])
    path = m.tokenizer_folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
        "{% generation %}{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    )
    path.write_text(json.dumps(config))


def generation_with_end(m: Maker) -> None:
    generation_without_end(m)
    path = m.tokenizer_folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace("{{ m['content'] }}{% endgeneration %}", "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}")
                    .replace("{% endif %}{{ '<|im_end|>\\\\n' }}", "{% endif %}{{ '\\\\n' if m['role'] == 'assistant' else '<|im_end|>\\\\n' }}"))  # fmt: skip


def parquet_user_trained(m: Maker) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [with_mask(row, users_too) for row in m.rows()]
    m.path = m.folder / "train.parquet"
    pq.write_table(pa.table({"input_ids": [r.ids for r in rows], "labels": [labels_of(r) for r in rows]}), m.path)


CHAT = ("chatml", "llama3", "mistral", "gemma", "zephyr", "alpaca", "vicuna", "deepseek", "own")
MANY_TURNS = tuple(name for name in CHAT if name != "alpaca")


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for name in CHAT:
        yield Case(f"answers_only {name}", name, answers_only, None)
        yield Case(f"padded_right {name}", name, padded_right, None)
        yield Case(f"raw_messages {name}", name, raw_messages, None)
        yield Case(f"inverted {name}", name, masked(inverted), "tokens.user_trained")
        yield Case(f"users_too {name}", name, masked(users_too), "tokens.user_trained")
        yield Case(f"no_end {name}", name, masked(no_end), "tokens.end_not_trained")
        yield Case(f"everything {name}", name, masked(everything), "tokens.all_trained")
        yield Case(f"late_by_one {name}", name, late_by_one, "tokens.answer_masked")
    for name in ("chatml", "gemma", "zephyr"):
        yield Case(f"answers_and_line_end {name}", name, answers_and_line_end, None)
    for name in ("llama3", "mistral", "chatml"):
        yield Case(f"padded_left {name}", name, padded_left, None)
        yield Case(f"padded_without_attention {name}", name, padded_without_attention, None)
        yield Case(f"batch_dict {name}", name, batch_dict, None)
        yield Case(f"batch_shifted_tuple {name}", name, batch_shifted_tuple, None)
        yield Case(f"raw_completions {name}", name, raw_completions, None)
        yield Case(f"pretraining_ids {name}", name, pretraining_ids, None)
        yield Case(f"shift_again {name}", name, shift_again, "tokens.shift")
        yield Case(f"no_shift_in_tuple {name}", name, no_shift_in_tuple, "tokens.shift")
        yield Case(f"some_empty {name}", name, some_empty, "tokens.nothing_trained")
        yield Case(f"padding_trained {name}", name, padding_trained, "tokens.padding_trained")
        yield Case(f"padding_trained_unseen {name}", name, padding_trained_unseen, "tokens.padding_trained")
        yield Case(f"answers_cut {name}", name, answers_cut, "tokens.answer_cut")
        yield Case(f"pad_is_end {name}", name, pad_is_end, "tokens.end_not_trained")
        yield Case(f"packed_without_resets {name}", name, packed_without_resets, "tokens.packing_positions")
    for name in ("llama3", "vicuna", "own", "chatml"):
        yield Case(f"last_turn_only {name}", name, last_turn_only, None)
        yield Case(f"cut_at_the_end {name}", name, cut_at_the_end, None)
        yield Case(f"packed_with_resets {name}", name, packed_with_resets, None)
        yield Case(f"first_answer_only {name}", name, masked(first_answer_only, turns=(2, 4)), "tokens.answer_masked")
        yield Case(
            f"second_answer_lost {name}", name, some_rows(second_answer_lost, 3, turns=(2, 4)), "tokens.answer_masked"
        )
        yield Case(f"all_after_first_prompt {name}", name, all_after_first_prompt, "tokens.user_trained")
        yield Case(f"packed_positions_run_on {name}", name, packed_positions_run_on, "tokens.packing_positions")
    for name in ("chatml", "llama3", "own"):
        yield Case(f"with_tools {name}", name, with_tools, None)
        yield Case(f"tools_too {name}", name, masked(tools_too, tool=True), "tokens.user_trained")
        yield Case(f"system_too {name}", name, masked(system_too, system=0.7), "tokens.user_trained")
        yield Case(f"users_in_some {name}", name, some_rows(users_too, 10), "tokens.user_trained")
        yield Case(f"opener_too {name}", name, masked(opener_too), "tokens.template_trained")
        yield Case(f"early_by_one {name}", name, early_by_one, "tokens.template_trained")
        yield Case(f"raw_sharegpt {name}", name, raw_sharegpt, None)
        yield Case(f"no_answer {name}", name, no_answer, "tokens.no_answer")
        yield Case(f"empty_answer {name}", name, empty_answer, "tokens.empty_answer")
        yield Case(f"user_weight {name}", name, user_weight, "tokens.user_trained")
        yield Case(f"raw_weights {name}", name, raw_weights, None)
        yield Case(f"completion_masks {name}", name, completion_masks, None)
    for name in ("plain", "chatml"):
        yield Case(f"batch_list {name}", name, batch_list, None)
        yield Case(f"batch_torchtune {name}", name, batch_torchtune, None)
        yield Case(f"shift_by_two {name}", name, shift_by_two, "tokens.shift")
        yield Case(f"shift_back {name}", name, shift_back, "tokens.shift")
        yield Case(f"twice_in_tuple {name}", name, twice_in_tuple, "tokens.shift")
        yield Case(f"shift_in_batch {name}", name, shift_in_batch, "tokens.shift")
        yield Case(f"all_empty {name}", name, all_empty, "tokens.nothing_trained")
        yield Case(f"padding_label_zero {name}", name, padding_label_zero, "tokens.padding_trained")
        yield Case(f"other_ignore {name}", name, other_ignore, "tokens.label_values")
        yield Case(f"labels_of_others {name}", name, labels_of_others, "tokens.label_mismatch")
        yield Case(f"lengths_differ {name}", name, lengths_differ, "tokens.damaged_rows")
        yield Case(f"no_end_in_text {name}", name, no_end_in_text, "tokens.no_end_token")
        yield Case(f"late_by_three {name}", name, late_by_three, "tokens.answer_masked" if name != "plain" else None)
        yield Case(f"packed_without_ends {name}", name, packed_without_ends, "tokens.no_document_end")
        yield Case(f"pretraining_with_positions {name}", name, pretraining_with_positions, None)
        yield Case(f"raw_text {name}", name, raw_text, None)
        yield Case(f"empty_completion {name}", name, empty_completion, "tokens.empty_answer")
    yield Case("plain answers", "plain", answers_only, None)
    yield Case("plain prompt_beside_ids", "plain", prompt_beside_ids, None)
    yield Case("plain padded", "plain", padded_right, None)
    yield Case("plain no_end", "plain", masked(no_end), "tokens.end_not_trained")
    for name in ("llama3", "gemma", "mistral"):
        yield Case(f"two_begins {name}", name, two_begins, "tokens.double_bos")
    for name in ("chatml", "llama3"):
        yield Case(
            f"answers_cut_by_option {name}", name, answers_cut_by_option, "tokens.answer_cut", ("--seq-len", "24")
        )
        yield Case(
            f"completions_cut_by_option {name}",
            name,
            completions_cut_by_option,
            "tokens.answer_cut",
            ("--seq-len", "30"),
        )
        yield Case(f"parquet {name}", name, parquet_rows, None)
        yield Case(f"parquet_user_trained {name}", name, parquet_user_trained, "tokens.user_trained")
    yield Case("generation_without_end", "chatml", generation_without_end, "tokens.end_not_trained")
    yield Case("generation_with_end", "chatml", generation_with_end, None)
    # Without a tokenizer there are roles neither to check nor to accuse.
    yield Case("bare answers", "chatml", answers_only, None, (), False)
    yield Case("bare padded", "llama3", padded_right, None, (), False)
    yield Case("bare shift", "llama3", shift_again, "tokens.shift", (), False)
    yield Case("bare padding", "llama3", padding_trained, "tokens.padding_trained", (), False)
    yield Case("bare empty", "llama3", some_empty, "tokens.nothing_trained", (), False)
    yield Case("bare run on", "llama3", packed_with_resets, None, (), False)
