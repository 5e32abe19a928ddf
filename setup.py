"""Build the readers in C++, `analyzers.native._readers`; where there is no compiler, install all else without them.

Everything else that setuptools needs stands in `pyproject.toml` and `MANIFEST.in`.
"""

import atexit
import shutil
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("analyzers/native/src")
# Python without a global lock has no limited interface, and the readers count on the lock.
WANTED = not sysconfig.get_config_var("Py_GIL_DISABLED")

READERS = Extension(
    "analyzers.native._readers",
    sorted(map(str, SOURCE.glob("*.cpp"))),
    depends=sorted(map(str, SOURCE.glob("*.hpp"))),
    language="c++",
    optional=True,
    py_limited_api=True,  # one file for all versions of Python from 3.11 on
    define_macros=[
        ("Py_LIMITED_API", "0x030B0000"),
        # Containers check their indexes: the first in the library of GNU, the second in that of LLVM.
        ("_GLIBCXX_ASSERTIONS", "1"),
        ("_LIBCPP_HARDENING_MODE", "_LIBCPP_HARDENING_MODE_FAST"),
    ],
    extra_compile_args=[
        "-std=c++20", "-O3", "-g0", "-Wall", "-Wextra", "-Wconversion", "-fno-strict-aliasing",
        "-fstack-protector-strong",
    ],
)  # fmt: skip

# What an earlier build left in `build` would come into the wheel, even modules that were deleted since.
build_base = tempfile.mkdtemp()
atexit.register(shutil.rmtree, build_base, ignore_errors=True)

setup(
    ext_modules=[READERS] if WANTED else [],
    options={"build": {"build_base": build_base}, "bdist_wheel": {"py_limited_api": "cp311"} if WANTED else {}},
)
