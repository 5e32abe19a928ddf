"""Unpickling creates data only, and runs no code."""

import gc
import io
import os
import pickle

import pytest

from analyzers import unpickle
from analyzers.errors import HostileInput, InputError


def load(content):
    return unpickle.load(io.BufferedReader(io.BytesIO(content)))


class Call:
    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_builtin_containers_come_back(protocol):
    content = {"a": [1, 2.5, None, True, ("x",)], "b": {"c": -(1 << 70)}}
    assert load(pickle.dumps(content, protocol)) == content


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Call()),
        pickle.dumps(os.getcwd),
        b"cposix\nsystem\n(S'true'\ntR.",
        b"(S'true'\niposix\nsystem\n.",
        b"Pid\n.",
        b"\x80\x04\x8c\x01x\x51.",
    ],
)
def test_code_is_refused(content):
    with pytest.raises(HostileInput):
        load(content)


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"hello", b"\x80\x02}q\x00X\xff\xff\x00\x00", b"\x80\x09."])
def test_damage_is_an_input_error(content):
    with pytest.raises(InputError, match="not a readable pickle") as caught:
        load(content)
    assert not isinstance(caught.value, HostileInput)


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_left_as_it_was(was_on):
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(InputError):
            load(b"nothing")
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()
