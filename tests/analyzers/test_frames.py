"""Tell user code from library code, for every form of path that recorders write."""

import pytest

from analyzers.frames import Origin, is_library, origin_of


@pytest.mark.parametrize(
    ("filename", "origin"),
    [
        ("", Origin.NATIVE), ("??", Origin.NATIVE), ("libc.so.6", Origin.NATIVE),
        ("/src/c10/core/Storage.cpp", Origin.NATIVE),
        ("/opt/conda/lib/python3.11/site-packages/torch/nn/modules/linear.py", Origin.RUNTIME),
        ("torch/nn/modules/linear.py", Origin.RUNTIME), ("<frozen runpy>", Origin.RUNTIME),
        ("/usr/lib/python3.12/threading.py", Origin.RUNTIME), ("threading.py", Origin.RUNTIME),
        ("C:\\py\\Lib\\site-packages\\torch\\optim\\adam.py", Origin.RUNTIME),
        ("/job/trainer/recorders/flight.py", Origin.RUNTIME),
        ("/job/workbench/recorders/hang/flight.py", Origin.RUNTIME),
        ("/usr/lib/python3/dist-packages/apex/optim.py", Origin.PACKAGE),
        ("/venv/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", Origin.PACKAGE),
        ("/home/me/train.py", Origin.USER), ("train.py", Origin.USER), ("/home/me/utils.h5.py", Origin.USER),
        ("/home/me/my_threading.py", Origin.USER),
        ("typing.py", Origin.RUNTIME), ("_weakrefset.py", Origin.RUNTIME), ("json/decoder.py", Origin.RUNTIME),
        ("concurrent/futures/thread.py", Origin.RUNTIME),
        # A folder of any name is the user's, and so are the names that scripts have.
        ("/home/me/typing.py", Origin.USER), ("src/typing.py", Origin.USER), ("trace.py", Origin.USER),
        ("code/train.py", Origin.USER), ("data/json/read.py", Origin.USER), ("typing_tools.py", Origin.USER),
    ],
)  # fmt: skip
def test_the_origin_of_a_file(filename, origin):
    assert origin_of(filename) is origin
    assert is_library(filename) == (origin is not Origin.USER)
