"""Feed the entries on device memory with any sizes: no sentence may contradict the numbers that it was made from."""

import re

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analyzers.failures.catalogue import known
from analyzers.failures.entry import headline, next_steps, sentence, write
from analyzers.failures.memory import request_of
from analyzers.logs.report import case_of

GIB = 1 << 30
_SIZE = re.compile(r"(\d+(?:\.\d+)?) (B|KiB|MiB|GiB|TiB)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB, "TiB": 1 << 40}
sizes = st.integers(min_value=1 << 20, max_value=200 * GIB)


def shown(count):
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / (1 << 20):.2f} MiB"


def new_text(asked, total, free, allocated, unused, others):
    process = total - free - others
    named = f"Process 4242 has {shown(others)} memory in use. " if others else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {shown(asked)}. GPU 0 has a total capacity of"
        f" {shown(total)} of which {shown(free)} is free. {named}Including non-PyTorch memory, this process has"
        f" {shown(process)} memory in use. Of the allocated memory {shown(allocated)} is allocated by PyTorch, and"
        f" {shown(unused)} is reserved by PyTorch but unallocated."
    )


def old_text(asked, total, free, allocated, unused, others):
    del others
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {shown(asked)} (GPU 0; {shown(total)} total capacity;"
        f" {shown(allocated)} already allocated; {shown(free)} free; {shown(allocated + unused)} reserved in total by"
        " PyTorch)"
    )


def sizes_in(text):
    return [float(amount) * _UNITS[unit] for amount, unit in _SIZE.findall(text)]


@settings(max_examples=150, deadline=None)
@given(
    text_of=st.sampled_from([new_text, old_text]),
    asked=sizes,
    total=st.integers(4 * GIB, 192 * GIB),
    shares=st.tuples(*[st.floats(min_value=0.0, max_value=1.0)] * 4),
)
def test_no_claim_on_device_memory_contradicts_its_numbers(text_of, asked, total, shares):
    weights = [share + 1e-6 for share in shares]
    free, allocated, unused, others = (int(total * 0.98 * weight / sum(weights)) for weight in weights)
    others = others if others > GIB else 0
    assume(allocated > 1 << 20)
    case = case_of(text_of(asked, total, free, allocated, unused, others))
    assert case is not None
    entry, case = known(case)
    request = request_of(case)
    name = entry.id.partition(".")[2]
    assert request.asked
    assert request.total
    assert request.free is not None
    if name == "request_larger_than_device":
        assert request.asked > request.total / 2
    if name in ("other_processes", "loading_beside_others"):
        assert request.lacking <= request.foreign <= request.total
    if name == "refused_in_spite_of_room":
        assert request.free > request.asked
    else:
        assert request.free <= (request.needed or 0) or name in ("request_larger_than_device", "other_processes")
    if name == "fragmented":
        assert (request.unused or 0) > request.asked
    said = " ".join([headline(entry, case), sentence(entry, case), write(entry.why, case), *next_steps(entry, case)])
    assert all(count <= 1.03 * max(request.total, request.asked) for count in sizes_in(said)), said
    assert "smaller batch" not in said or name in ("device", "one_rank", "logits"), said
