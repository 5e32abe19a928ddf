"""Failures of the installed software: libraries that do not fit each other, the system or the GPU."""

from analyzers.case.facts import EventKind, LogClass
from analyzers.failures.entry import Example, Failure, sign

ENTRIES: tuple[Failure, ...] = (
    Failure(
        id="software.extension_of_other_torch",
        kind=LogClass.CRASHED,
        what="A compiled extension was built for another version of PyTorch than the one that is installed.",
        signs=(
            sign(
                "undefined symbol", r"(?P<library>[\w.+-]+\.so[\w.]*): undefined symbol: \S*(?:c10|at[0-9]|torch|caffe)"
            ),
        ),
        headline="{library} was built for another version of PyTorch than the one that is installed",
        why="the C++ interface of PyTorch changes from version to version, and the missing symbol belongs to it; the"
        " package itself is installed",
        next=(
            "install the build of the package that names your versions of PyTorch, CUDA and Python, and the C++ ABI (its"
            " wheel's name does), or build it against the installed PyTorch: pip install --no-build-isolation"
            " --no-cache-dir --force-reinstall PACKAGE",
            "or install the version of PyTorch that the package was built for",
        ),
        check='python -c "import torch; print(torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi())"',
        rules_out="the name of the symbol has neither c10, at nor torch in it",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ImportError: /opt/env/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so:"
                " undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
                source="Dao-AILab/flash-attention#667",
                says=("flash_attn_2_cuda", "--no-build-isolation"),
            ),
        ),
        near_misses=("ImportError: libfoo.so: undefined symbol: cblas_sgemm",),
        knowledge="PyTorch's notes on C++ extensions; the mangled names of namespace c10",
    ),
    Failure(
        id="software.mixed_cuda_libraries",
        kind=LogClass.CRASHED,
        what="A CUDA library loads another one of a different version, most often because LD_LIBRARY_PATH comes first.",
        signs=(
            sign(
                "undefined symbol",
                r"(?P<library>lib(?:cu\w+|nv\w+|nccl)[\w.-]*\.so[\w.]*|torch\S*\.so[\w.]*): undefined symbol:"
                r" (?P<symbol>_*(?:cu|nv|nccl)\w+)",
            ),
        ),
        headline="{library} found a CUDA library of another version: {symbol} is missing",
        why="wheels of PyTorch bring their own CUDA libraries, and a folder in LD_LIBRARY_PATH or another wheel is"
        " searched before them",
        next=(
            "run once with LD_LIBRARY_PATH unset; if that helps, leave the CUDA folder out of it (also in modules and"
            " conda activation)",
            "reinstall PyTorch together with its nvidia-* packages, so that their versions fit each other",
        ),
        check="ldd on the named library shows which file it takes; `pip list | grep nvidia` shows the versions",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ImportError: /opt/env/lib/python3.10/site-packages/nvidia/cusparse/lib/libcusparse.so.12: undefined symbol:"
                " __nvJitLinkAddData_12_1, version libnvJitLink.so.12",
                source="pytorch/pytorch#111469",
                says=("LD_LIBRARY_PATH",),
            ),
        ),
        knowledge="pytorch/pytorch#111469 and its answers",
    ),
    Failure(
        id="software.old_glibc",
        kind=LogClass.CRASHED,
        what="A compiled library needs a newer C library than the system has.",
        signs=(sign("GLIBC_", r"version [`']GLIBC_(?P<version>[\d.]+)' not found"),),
        headline="The system's C library is older than {version}, which a compiled package needs",
        why="a wheel that was built on a newer system needs functions that this one lacks; the C library comes with the"
        " operating system and cannot be installed by pip",
        next=(
            "install a build of the package for older systems (an older version of it, or from conda-forge), or build"
            " it from source on this machine",
            "or run in a container of a newer system",
        ),
        check="`ldd --version` shows the C library of the system",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by"
                " /opt/env/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so)",
                source="Dao-AILab/flash-attention#1708",
                says=("2.32", "container"),
            ),
        ),
        knowledge="glibc's versioned symbols; the manylinux policies",
    ),
)
