"""A `.pt` file may claim any view of its storages; what it shows lies in the storage it names, or is refused."""

import itertools
import math
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers.errors import HostileInput, InputError
from analyzers.tokens import files
from analyzers.tokens.files import rows_of

KINDS = sorted(files.DTYPES)
HUGE = (1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 100)


def of(value):
    """Return the opcodes that push a plain value."""
    return pickle.dumps(value, 2)[2:-1]


def made(*parts):
    return b"(" + b"".join(parts) + b"t"


def named(module, name):
    return f"c{module}\n{name}\n".encode()


def storage(kind="LongStorage", key="0", count=2):
    return made(of("storage"), named("torch", kind), of(key), of("cpu"), of(count)) + b"Q"


def tensor(base, offset, shape, strides):
    arguments = (base, of(offset), made(*map(of, shape)), made(*map(of, strides)))
    return named("torch._utils", "_rebuild_tensor_v2") + made(*arguments) + b"R"


def file_of(path, value, content=bytes(16)):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("b/data.pkl", b"\x80\x02" + value + b".")
        archive.writestr("b/data/0", content)
    return path


def test_a_view_of_a_view_is_refused(tmp_path):
    """Its bounds would be those that the first view claims, which may be far beyond the storage."""
    endless = tensor(storage(), 0, [1 << 20], [0])
    for count, offset in ((4, 0), (1000, 0), (8, 1 << 16)):
        path = file_of(tmp_path / "a.pt", tensor(endless, offset, [1, count], [count, 1]))
        with pytest.raises(InputError):
            files.load(path)


def test_expanded_tensors_are_read_and_endless_ones_refused(tmp_path):
    read = files.load(file_of(tmp_path / "a.pt", tensor(storage(), 0, [3, 2], [0, 1]), struct.pack("<2q", 7, 8)))
    assert read.tolist() == [[7, 8]] * 3
    with pytest.raises(HostileInput):
        files.load(file_of(tmp_path / "b.pt", tensor(storage(), 0, [1 << 40], [0])))


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_read_to_the_last_element_and_no_further(tmp_path, kind):
    size = np.dtype(files.DTYPES[kind]).itemsize
    content = bytes(range(1, 16 + 1))
    count = 16 // size
    read = files.load(file_of(tmp_path / "a.pt", tensor(storage(kind), 0, [count], [1]), content))
    assert read.tobytes() == (content if kind != "BoolStorage" else read.tobytes())
    for offset, shape, strides in ((1, [count], [1]), (0, [count + 1], [1]), (0, [2], [count]), (count, [1], [1])):
        with pytest.raises(HostileInput):
            files.load(file_of(tmp_path / "b.pt", tensor(storage(kind), offset, shape, strides), content))
    with pytest.raises(InputError):
        files.load(file_of(tmp_path / "c.pt", tensor(storage(kind), 0, [count], [1]), content[: size * (count - 1)]))


@pytest.mark.parametrize("argument", [of([1, 2]), of({}), of("abc"), of(None), b"cos\nsystem\n", of(b"x" * 64)])
def test_only_a_storage_can_be_the_base_of_a_tensor(tmp_path, argument):
    with pytest.raises(InputError):
        files.load(file_of(tmp_path / "a.pt", tensor(argument, 0, [1], [1])))


@pytest.mark.parametrize(
    "state",
    [
        made(of(1), made(of(1 << 20)), named("torch", "LongStorage"), b"\x89", of("x")),
        made(of(None), of({"strides": (8,), "shape": (1 << 20,), "dtype": "O", "data": "x"})),
        of({"shape": (1 << 20,)}),
    ],
)
def test_the_state_of_what_was_read_cannot_be_replaced(tmp_path, state):
    for target in (tensor(storage(), 0, [2], [1]), storage(), named("torch._utils", "_rebuild_tensor_v2")):
        with pytest.raises(InputError):
            files.load(file_of(tmp_path / "a.pt", target + state + b"b"))


numbers = st.one_of(st.integers(-3, 20), st.sampled_from(HUGE), st.sampled_from([-number for number in HUGE]))
bases = st.tuples(st.sampled_from(KINDS), st.integers(0, 40))


@given(base=bases, offset=numbers, dimensions=st.lists(st.tuples(numbers, numbers), max_size=5))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_view_is_a_part_of_its_storage_or_refused(tmp_path, base, offset, dimensions):
    kind, length = base
    content = bytes(i % 2 for i in range(length))
    shape, strides = [size for size, _ in dimensions], [stride for _, stride in dimensions]
    path = file_of(tmp_path / "a.pt", tensor(storage(kind), offset, shape, strides), content)
    dtype = np.dtype(files.DTYPES[kind])
    try:
        read = files.load(path)
    except InputError:
        return
    assert read.dtype == dtype
    assert list(read.shape) == shape
    if math.prod(shape) > 1 << 16:
        return  # too much to compare; it has stride 0, and the next test shows where it lies
    elements = np.frombuffer(content[: length - length % dtype.itemsize], dtype)
    for index in itertools.product(*map(range, shape)):
        # The index is computed with Python's integers, which cannot overflow.
        assert read[index] == elements[offset + sum(i * stride for i, stride in zip(index, strides, strict=True))]


@given(base=bases, offset=numbers, dimensions=st.lists(st.tuples(numbers, numbers), max_size=5))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_view_reaches_beyond_its_storage(tmp_path, base, offset, dimensions):
    kind, length = base
    shape, strides = [size for size, _ in dimensions], [stride for _, stride in dimensions]
    path = file_of(tmp_path / "a.pt", tensor(storage(kind), offset, shape, strides), bytes(length))
    try:
        read = files.load(path)
    except InputError:
        return
    if read.size:
        assert offset >= 0
        last = offset + sum((size - 1) * stride for size, stride in dimensions)
        assert (last + 1) * read.itemsize <= length
    for row in itertools.islice(rows_of(path), 3) if read.ndim else ():
        assert row


opcodes = st.lists(
    st.one_of(
        st.sampled_from([storage(), tensor(storage(), 0, [2], [1]), named("collections", "OrderedDict")]),
        st.sampled_from(
            [named("torch._utils", "_rebuild_tensor_v2"), named("torch", "LongStorage"), b"R", b"b", b"\x81"]
        ),
        st.sampled_from([b"(", b"t", b"l", b"d", b"s", b"u", b"e", b"a", b"2", b"0", b"}", b"]", b")", b"N", b"Q"]),
        st.sampled_from([named("transformers.tokenization_utils_base", "BatchEncoding"), b"q\0", b"h\0"]),
        numbers.map(of),
    ),
    max_size=20,
)


@given(opcodes)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_of_opcodes_is_answered_or_refused(tmp_path, parts):
    try:
        files.load(file_of(tmp_path / "a.pt", b"".join(parts)))
    except InputError:
        return
