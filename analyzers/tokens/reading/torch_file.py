"""Read the tensors of a `.pt` file without torch, and without executing anything in it.

The file is a zip archive: a pickle of the structure, and one entry with the bytes of each storage.
"""

import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from analyzers.columns import Column
from analyzers.errors import HostileInput, InputError

DTYPES = {
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    # NumPy has no bfloat16, so that its bits are read as whole numbers.
    "BoolStorage": "?", "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "BFloat16Storage": "<u2",
}  # fmt: skip
_MOST_REPEATED = 1 << 28
"""The most elements of a tensor that has more of them than its storage, because it repeats them (`expand`)."""
SAVE_AGAIN = "save the batch with torch.save as a dict of tensors: torch.save(dict(batch), 'batch.pt')"


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
        """Refuse a pickle that would change a storage."""
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
        """Refuse a pickle that would change this function."""
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
    raise HostileInput(f"the file holds more than tensors: {what}", SAVE_AGAIN)


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
        raise InputError(f"not a readable .pt file: {error or type(error).__name__}", SAVE_AGAIN) from error
