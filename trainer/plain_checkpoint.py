"""Read checkpoints of torch.distributed.checkpoint as data: no code in them runs.

PyTorch loads the file `.metadata` and all values that are no tensors by `pickle`, which calls whatever the file names.
A checkpoint may come from elsewhere, and a run resumes from the newest one in its folder by itself.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as known
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from trainer.errors import CheckpointError

_CLASSES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("collections", "OrderedDict"),
    # Python 3.13 has moved the classes of paths.
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("Path", "PosixPath", "PurePosixPath")),
    *(("builtins", name) for name in ("set", "frozenset", "list", "dict", "tuple")),
    *(
        (known.__name__, name)
        for name in (
            *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties"),
            *("ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
        )
    ),
}
"""What the metadata of a checkpoint may name, as (module, name), beside the data types of torch."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _CLASSES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise CheckpointError(
            f"the metadata of the checkpoint names {module}.{name}, which is no part of a checkpoint",
            "load only checkpoints of torch.distributed.checkpoint; this one may come from an attacker",
        )


class PlainReader(FileSystemReader):
    """Reads a checkpoint in a folder; its metadata are read as data."""

    def read_metadata(self, *_args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of the checkpoint.

        Raises:
            CheckpointError: They name something that is no part of a checkpoint, or are damaged.
        """
        path = self._get_metadata_path(kwargs.get("rank"))
        with self.fs.create_stream(path, "rb") as file:
            metadata = _loaded(file, Path(path))
        metadata.storage_meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _loaded(file: io.IOBase, path: Path) -> Metadata:
    try:
        metadata = _PlainUnpickler(io.BytesIO(file.read())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise CheckpointError(f"{path} is damaged: {error}", "choose another checkpoint") from error
    if not isinstance(metadata, Metadata):
        raise CheckpointError(f"{path} is no metadata of a checkpoint", "choose another checkpoint")
    return metadata


class PlainPlanner(DefaultLoadPlanner):
    """Plans the loading of a checkpoint; values that are no tensors may be numbers, texts and collections of these."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            loaded = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{name} in the checkpoint is no plain value: {str(error).partition(chr(10))[0]}",
                f"leave it out with --checkpoint.exclude_from_loading {name.partition('.')[0]}",
            ) from error
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[name], loaded)
        else:
            self.state_dict[name] = loaded
