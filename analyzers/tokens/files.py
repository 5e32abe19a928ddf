"""Find the files of a data set and of a tokenizer at the paths that a user names."""

import importlib
import math
import os
import pickle
import zipfile
from codecs import BOM_UTF8
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.errors import HostileInput, InputError
from analyzers.files import decoded_json

DTYPES = {
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    # NumPy has no bfloat16, so that its bits are read as whole numbers.
    "BoolStorage": "?", "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
}  # fmt: skip
_MOST_REPEATED = 1 << 28
"""The most elements of a tensor that has more of them than its storage, because it repeats them (`expand`)."""
_SAVE_AGAIN = "save the batch with torch.save as a dict of tensors: torch.save(dict(batch), 'batch.pt')"


class SavedMapping(dict[str, Any]):
    """The contents of a `BatchEncoding`, the dict of tensors that tokenizers of Hugging Face return."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        data = state.get("data")
        self.update(data if isinstance(data, dict) else {})


class Storage:
    """The elements of one storage: the only thing that a tensor can be a view of.

    A view of a view is refused: its bounds would be those that the file claims for the first view, and not those of the
    bytes that are there.
    """

    __slots__ = ("elements",)

    def __init__(self, elements: Column) -> None:
        self.elements = elements

    def __setstate__(self, state: object) -> NoReturn:
        refuse("a changed storage")


class Rebuild:
    """The function `torch._utils._rebuild_tensor_v2`, as an object without attributes that a pickle could change."""

    __slots__ = ()

    def __call__(
        self, storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: object
    ) -> Column:
        """Return a tensor as a read-only view of its storage; refuse one that reaches beyond it, or has no end."""
        if not isinstance(storage, Storage):
            refuse("a tensor that is no view of a storage")
        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or not all(isinstance(n, int) and n >= 0 for n in numbers):
            refuse("a tensor of an impossible shape")
        elements = storage.elements
        if 0 in shape:
            return np.empty(shape, elements.dtype)
        # An expanded tensor repeats elements. One that repeats them without end would fill the memory later.
        if math.prod(shape) > max(len(elements), _MOST_REPEATED):
            refuse("a tensor that repeats its storage without end")
        step = elements.itemsize
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if last >= len(elements):
            refuse("a tensor that reaches beyond its storage")
        # The strides of dimensions of one element are never used, and may be larger than a machine word.
        steps = [stride * step if n > 1 else step for n, stride in zip(shape, strides, strict=True)]
        # This constructor checks the bounds a second time, against the bytes of the storage; `as_strided` does not.
        view: Column = np.ndarray(shape, elements.dtype, elements, offset * step, steps)
        view.setflags(write=False)
        return view

    def __setstate__(self, state: object) -> NoReturn:
        refuse("a changed function")


class TensorUnpickler(pickle.Unpickler):
    """An unpickler that builds plain containers and tensors, and refuses everything else."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(archive.open(f"{folder}/data.pkl"))
        self.archive, self.folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement for a function or class that the pickle names; refuse what tensors do not need."""
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return Rebuild()
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("transformers.tokenization_utils_base", "BatchEncoding"):
            return SavedMapping
        if module in ("torch", "torch.storage") and name in DTYPES:
            return DTYPES[name]
        return refuse(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage to which `pid`, a reference in the pickle, points."""
        kind, dtype, key, *_ = pid
        if kind != "storage" or dtype not in DTYPES.values() or not str(key).isdecimal():
            refuse(f"the storage {key}")
        entry = self.archive.getinfo(f"{self.folder}/data/{key}")
        # torch.save never compresses; a small compressed entry could unpack to more memory than there is.
        if entry.compress_type != zipfile.ZIP_STORED:
            refuse("a compressed storage")
        return Storage(np.frombuffer(self.archive.read(entry), dtype=dtype))


def refuse(what: str) -> NoReturn:
    """Refuse a file that holds something other than tensors.

    Raises:
        HostileInput: Always.
    """
    raise HostileInput(f"the file holds more than tensors: {what}", _SAVE_AGAIN)


def load(path: Path) -> Any:
    """Return the object in a `.pt` file, with NumPy arrays in place of tensors.

    Raises:
        HostileInput: The file holds other objects than containers, numbers, texts and tensors.
        InputError: The file is damaged, or was written by a PyTorch before 1.6.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            return TensorUnpickler(archive, name.removesuffix("/data.pkl")).load()
    except (InputError, MemoryError):
        raise
    except Exception as error:  # a damaged archive or pickle raises nearly anything
        raise InputError(f"not a readable .pt file: {error or type(error).__name__}", _SAVE_AGAIN) from error


Raw = dict[str, Any]
# A file without line ends must not be read into memory as one line.
_LINE_BYTES = 256 << 20
_JSON_LINES, JSON, TORCH, _PARQUET, _ARROW = (
    (".jsonl", ".ndjson"),
    (".json",),
    (".pt", ".pth"),
    (".parquet",),
    (".arrow",),
)
SUFFIXES = (*_JSON_LINES, *JSON, *TORCH, *_PARQUET, *_ARROW)
FORMS = "give a .jsonl, .parquet or .pt file, or a folder saved by the datasets package"
_INSTALL_ARROW = "pip install pyarrow, or save the data set as .jsonl: dataset.to_json('train.jsonl')"


def rows_of(path: Path) -> Iterator[Raw | str]:
    """Yield the rows of a file; in place of a row that cannot be read, yield a text with the reason.

    Raises:
        InputError: The file is of no known kind, damaged, or needs a package that is not installed.
    """
    suffix = path.suffix.lower()
    if suffix in _JSON_LINES or (suffix in JSON and not _begins_as_list(path)):
        return _json_lines(path)
    if suffix in JSON:
        return iter(_json_list(path))
    if suffix in TORCH:
        return _batch_rows(load(path))
    if suffix in (*_PARQUET, *_ARROW):
        return _arrow_rows(path)
    raise InputError("no data set of a known kind", FORMS)


def _begins_as_list(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).removeprefix(BOM_UTF8).lstrip(b" \t\r\n").startswith(b"[")


def _json_lines(path: Path) -> Iterator[Raw | str]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_LINE_BYTES):
            number += 1
            text = line.removeprefix(BOM_UTF8).strip() if number == 1 else line.strip()
            if text:
                yield _json_row(text, number)


def _json_row(text: bytes, number: int) -> Raw | str:
    """Return the row in one line of JSON, or a text on why it cannot be read; `number` is the line number."""
    try:
        row = decoded_json(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"line {number}: not JSON: {error}"
    return row if isinstance(row, dict) else f"line {number}: not a JSON object"


def _json_list(path: Path) -> list[Raw | str]:
    """Return the rows of a JSON file that holds a list of objects, with an error text for each other element.

    Raises:
        InputError: The file is not JSON.
    """
    try:
        rows = decoded_json(path.read_bytes().removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", FORMS) from error
    return [row if isinstance(row, dict) else f"row {i}: not a JSON object" for i, row in enumerate(rows)]


def _batch_rows(batch: Any) -> Iterator[Raw | str]:
    """Yield the rows of a saved batch: a dict of tensors, a list of rows, a pair of inputs and labels, or a tensor.

    Raises:
        InputError: The batch is none of these.
    """
    # torchtitan's loaders yield such pairs, with the inputs in a dict of their own.
    if isinstance(batch, (tuple, list)) and len(batch) == 2 and isinstance(batch[1], np.ndarray):
        inputs = batch[0] if isinstance(batch[0], dict) else {"inputs": batch[0]}
        batch = {**inputs, "labels": batch[1]}
    if isinstance(batch, (tuple, list)) and batch and all(isinstance(row, dict) for row in batch):
        for row in batch:
            yield from _batch_rows(row)
        return
    if isinstance(batch, np.ndarray):
        batch = {"inputs": batch}
    if not isinstance(batch, dict):
        raise InputError(f"a batch is a dict of tensors, and this is {type(batch).__name__}", _SAVE_AGAIN)
    yield from _split_columns(batch)


def _split_columns(batch: Raw) -> Iterator[Raw]:
    """Yield the rows of a dict of tensors (batch, tokens); a dict without tensors of two dimensions is itself a row."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, np.ndarray) and value.ndim}
    rows = max((len(value) for value in tensors.values() if value.ndim > 1), default=0)
    if not rows:
        yield batch
        return
    for i in range(rows):
        yield {name: value[i] for name, value in tensors.items() if value.ndim > 1 and i < len(value)}


def _arrow_rows(path: Path) -> Iterator[Raw | str]:
    """Yield the rows of a Parquet or Arrow file, of which only a part is in memory at a time.

    Raises:
        InputError: The package pyarrow is not installed, or the file is damaged.
    """
    # Its default allocator reserves more address space than the limit of this process has.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(f"{path.suffix} files need the package pyarrow: {error}", _INSTALL_ARROW) from error
    try:
        if path.suffix.lower() in _PARQUET:
            # Small parts, because the memory of this process is limited.
            yield from _column_rows(parquet.ParquetFile(path).iter_batches(batch_size=256, use_threads=False))
            return
        with arrow.memory_map(str(path)) as source:
            yield from _column_rows(_opened_stream(arrow, source))
    except (arrow.ArrowException, ValueError) as error:
        raise InputError(
            f"not a readable {path.suffix} file: {error}", "check that the file was copied whole"
        ) from error


def _opened_stream(arrow: Any, source: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow file in one of its two formats: stream or random access.

    `arrow` is the module pyarrow, `source` the opened file. The package datasets writes the stream format.
    """
    try:
        yield from arrow.ipc.open_stream(source)
    except arrow.ArrowInvalid:
        source.seek(0)
        reader = arrow.ipc.open_file(source)
        yield from (reader.get_batch(i) for i in range(reader.num_record_batches))


def _column_rows(batches: Iterator[Any]) -> Iterator[Raw]:
    for batch in batches:
        yield from batch.to_pylist()


_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
FILES_AT_MOST = 10_000
_OF_DATASETS = ("dataset_info.json", "state.json", "dataset_dict.json")
"""The files that the package datasets writes beside the rows."""


class DataFiles(NamedTuple):
    """The files of a data set, and those of its tokenizer: `tokenizer.json` first, then the files beside it."""

    data: list[Path]
    tokenizer: list[Path]


def find_files(paths: Sequence[Path], tokenizer: Path | None) -> DataFiles:
    """Return the files of a data set and of its tokenizer; a folder stands for all data files below it.

    Raises:
        InputError: A path does not exist, or a folder has no file of a known kind.
    """
    return DataFiles(
        [file for path in paths for file in _data_files(path)], _tokenizer_files(tokenizer) if tokenizer else []
    )


def _data_files(path: Path) -> list[Path]:
    """Return the data files at a path: the file itself, or all below a folder.

    Raises:
        InputError: The path does not exist, or has no data file of a known kind, or too many.
    """
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and _is_rows(file))
        if not files or len(files) > FILES_AT_MOST:
            raise InputError(f"{path}: {len(files) or 'no'} files of rows", FORMS)
        return files
    if not path.is_file():
        reason = "not a regular file" if path.exists() else "no such file or folder"
        raise InputError(f"{path}: {reason}", FORMS)
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: no data set of a known kind", FORMS)
    return [path]


def _is_rows(path: Path) -> bool:
    return path.is_file() and path.name not in (*_OF_DATASETS, *_BESIDE, "tokenizer.json", "config.json")


def _tokenizer_files(path: Path) -> list[Path]:
    """Return the files of a tokenizer: `tokenizer.json` (`path` is this file or its folder), and the files beside it.

    Raises:
        InputError: There is no such file.
    """
    hint = "give --tokenizer a tokenizer.json, or the folder of a model that has one"
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file}: no such file", hint)
    if file.suffix != ".json":
        raise InputError(f"{file}: not a tokenizer.json", hint)
    return [file, *(beside for name in _BESIDE if (beside := file.parent / name).is_file())]
