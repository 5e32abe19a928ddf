"""Rows are called truncated only where lengths pile up at the largest one, or where the option says the length."""

import random

import pytest

pytest.importorskip("tokenizers")

from analyzers import tokens
from analyzers.store import Options
from benchmarks.masks.cases import Case, Maker
from benchmarks.masks.rows import Row, encoded, padded, sentence, with_mask

LIMIT = 64


def long_questions(m, count, system=False):
    """Return conversations whose questions are much longer than their answers."""
    rows = []
    for _ in range(count):
        question = " ".join(sentence(m.rng) for _ in range(m.rng.randint(3, 40)))
        messages = [{"role": "system", "content": question}] if system else []
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": sentence(m.rng)}]
        rows.append(encoded(m.family, m.tokenizer, messages, whole=True))
    return rows


def stream(rows, length):
    """Return the rows as one stream of tokens that is cut into pieces of one length, with a shorter one at its end."""
    whole = Row()
    for row in rows:
        whole = whole.joined(row)
    return [Row(*(c[at : at + length] for c in whole.columns())) for at in range(0, len(whole.ids), length)]


def packed_stream(m):
    m.tokenised(stream(long_questions(m, 60), LIMIT)[:-1])


def packed_stream_with_rest(m):
    m.tokenised(stream(long_questions(m, 60), LIMIT))


def packed_documents(m):
    """Fill rows of 256 tokens with whole conversations and then padding, so that none is cut."""
    rows, current = [], Row()
    for row in m.rows(120, turns=(1, 2)):
        if len(current.ids) + len(row.ids) > 4 * LIMIT:
            rows, current = [*rows, padded(current, 4 * LIMIT, m.pad)], Row()
        current = current.joined(row)
    m.tokenised(rows, attention=True, positions=True)


def fixed(m, length=LIMIT, every=5):
    """Return rows of one length, of which every fifth has no label."""
    rows = [row.cut(length) for row in m.rows(200, turns=(3, 4)) if len(row.ids) >= length]
    return [
        with_mask(row, (lambda *_: False) if i % every == 3 else (lambda j, *_: j > 20)) for i, row in enumerate(rows)
    ]


def fixed_length(m):
    m.tokenised(fixed(m))


def fixed_length_padded(m):
    m.tokenised([padded(row, 2 * LIMIT, m.pad) for row in fixed(m)], attention=True)


def same_length_by_chance(m):
    """Lengths from 40 to 300, of which the two largest are equal by chance; one of them has no label."""
    rows = [row.cut(random.Random(i).randint(40, 299)) for i, row in enumerate(m.rows(120, turns=(6, 9)))]
    whole = [row.cut(300) for row in m.rows(40, turns=(8, 9)) if len(row.ids) >= 300][:2]
    assert len(whole) == 2
    m.tokenised(
        [with_mask(row, lambda j, *_: j > 20) for row in (*rows, whole[0])] + [with_mask(whole[1], lambda *_: False)]
    )


def prompts_only(m):
    m.lines([{"input_ids": row.ids[:20]} for row in long_questions(m, 60)])


def all_cut(m):
    """Each system prompt is longer than the limit, so that no row has a part of an answer; all have one length."""
    m.tokenised([row.cut(20) for row in long_questions(m, 60, system=True)])


def half_cut(m):
    rows = m.rows(turns=(1, 1))
    starts = sorted(row.mask.index(True) for row in rows)
    m.tokenised([row.cut(starts[len(starts) // 2]) for row in rows])


def few_cut(m):
    """Of 200 conversations those with the 5 % longest questions are truncated inside of their question."""
    rows = long_questions(m, 200)
    starts = sorted(row.mask.index(True) for row in rows)
    m.tokenised([row.cut(starts[-10]) for row in rows])


def cut_padded(m):
    rows = long_questions(m, 120)
    limit = sorted(row.mask.index(True) for row in rows)[-20]
    m.tokenised([padded(row.cut(limit), limit, m.pad) for row in rows], attention=True)


CUT, NOTHING = "tokens.answer_cut", "tokens.nothing_trained"
CASES = [
    (Case("packed stream", "chatml", packed_stream, None), None, False),
    (Case("packed stream with a rest", "llama3", packed_stream_with_rest, None), None, False),
    (Case("packed documents", "zephyr", packed_documents, None), None, False),
    (Case("fixed length, no tokenizer", "chatml", fixed_length, NOTHING, (), False), None, False),
    (Case("fixed length and padding", "llama3", fixed_length_padded, NOTHING, (), False), None, False),
    (Case("equal by chance, no tokenizer", "chatml", same_length_by_chance, NOTHING, (), False), None, False),
    (Case("prompts only", "chatml", prompts_only, None), None, False),
    (Case("all of one length, cut or not", "chatml", all_cut, NOTHING), None, False),
    (Case("all are cut, no tokenizer", "chatml", all_cut, NOTHING, (), False), None, False),
    (Case("half is cut", "mistral", half_cut, CUT), None, True),
    (Case("few are cut", "chatml", few_cut, CUT), None, True),
    (Case("few are cut, no tokenizer", "llama3", few_cut, CUT, (), False), None, True),
    (Case("all are cut, by the option", "chatml", all_cut, CUT), 20, True),
    (Case("cut and padded", "gemma", cut_padded, CUT), None, True),
]


@pytest.mark.parametrize(("case", "seq_len", "is_cut"), CASES, ids=[case.name for case, _, _ in CASES])
def test_rows_are_cut_only_where_their_lengths_show_it(case, seq_len, is_cut, tmp_path):
    found = answer(case, seq_len, tmp_path)
    assert (CUT in found) is is_cut
    assert case.mistake is None or case.mistake in found


def answer(case, seq_len, folder):
    """Return the ids of the findings on a case's data set."""
    maker = Maker(case, folder, folder / "tokenizers")
    case.write(maker)
    files = tokens.find_files([maker.path], maker.tokenizer_folder if case.tokenizer else None)
    return {finding.id for finding in tokens.analyze(files, Options(cache=False), seq_len=seq_len).findings}
