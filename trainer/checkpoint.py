"""Save checkpoints with torch.distributed.checkpoint and load them on any mesh."""

import io
import pickle
import re
import shutil
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import metadata as known
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from trainer import resume
from trainer.config import JobConfig
from trainer.data.loader import Loader
from trainer.errors import CheckpointError
from trainer.hugging_face import load_weights, save_weights
from workbench.recorders.hang.flight_recorder import CHECKPOINT_GROUP

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


OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)
"""The options for state dicts: the optimizer's state is keyed by parameter names.

The numbers that PyTorch uses by default differ between meshes.
"""
StateDict = dict[str, Any]
"""A nested dict of tensors and other values, which torch.distributed.checkpoint saves and loads."""
_STEP_FOLDER = re.compile(r"step-(\d+)")
SEED = "step-0"
"""The folder name of a seed checkpoint: only the initial weights, from which runs on other meshes can start."""


@dataclass
class TrainState:
    """Everything that a checkpoint saves: model, optimizer, position in the data and step number."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Loader
    step: int = 0
    """The number of the last finished step, counted from 1; 0 before the first step."""

    def gather(self) -> StateDict:
        """Return {part name: its state dict}; the parts are model, optimizer, dataloader and train_state.

        The configuration key checkpoint.exclude_from_loading uses the same names.
        """
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=OPTIONS),
            "dataloader": self.loader.state_dict(),
            "train_state": {"step": self.step},
        }

    def restore(self, parts: StateDict) -> None:
        """Load the given state dicts into model, optimizer and the other parts, whose tensors are overwritten in place.

        A part without a state dict stays unchanged.
        """
        if "model" in parts:
            set_model_state_dict(self.model, parts["model"])
        if "optimizer" in parts:
            set_optimizer_state_dict(self.model, self.optimizer, parts["optimizer"], options=OPTIONS)
        if "dataloader" in parts:
            self.loader.load_state_dict(parts["dataloader"])
        if "train_state" in parts:
            self.step = parts["train_state"]["step"]


class Checkpointer:
    """Saves and loads checkpoints of `state`, as the [checkpoint] section of the configuration sets."""

    def __init__(self, config: JobConfig, state: TrainState, made: resume.Made) -> None:
        self.job, self.config, self.state, self.made = config, config.checkpoint, state, made
        self.takes_seed = config.debug.seed is None
        self.audit: resume.Audit | None = None
        """The settings that differ from those of the run that saved the loaded checkpoint; None if none was resumed."""
        self.notes: list[str] = []
        """What the user must know about the loaded checkpoint, or about one that was not loaded."""
        self.folder = Path(config.job.dump_folder, config.checkpoint.folder)
        self.last_step = config.training.steps
        self._saving: Future[Any] | None = None
        self._group: dist.ProcessGroup | None = None
        self._stager: DefaultStager | None = None
        if self.config.enable and self.config.async_mode != "disabled":
            pinned = self.config.async_mode == "async_with_pinned_mem"
            if pinned and not torch.cuda.is_available():
                self.notes.append("async_with_pinned_mem: without a device checkpoints are copied to ordinary memory")
            self._stager = _build_stager(pinned=pinned)
            # A group of its own: its collectives run on another thread, beside those of the training step.
            self._group = dist.new_group(backend="gloo", group_desc=CHECKPOINT_GROUP)

    def load(self) -> Path | None:
        """Load a checkpoint and return its path; return None if there is nothing to load.

        The checkpoint is the one to resume from, or else the one at checkpoint.initial_load_path.

        Raises:
            CheckpointError: The configured step or path does not exist.
        """
        if not self.config.enable:
            return None
        if path := self._path_to_resume():
            if asked := self.config.initial_load_path:
                self.notes.append(f"checkpoint.initial_load_path {asked} is not loaded: {path} goes before it")
            return self._load(path, ("model",)) if path.name == SEED else self._resume(path)
        if weights := self._complete_steps():
            self.notes.append(
                f"Not resumed: the checkpoints in {self.folder} hold weights only, so training starts at step 1. To"
                " resume after the last step of a run, save with --checkpoint.no_last_save_model_only; to begin with"
                f" the newest weights, give --checkpoint.initial_load_path {self.folder / f'step-{weights[-1]}'} and"
                " another --checkpoint.folder"
            )
        if self.config.initial_load_in_hf:
            path = Path(str(self.config.initial_load_path))
            load_weights(self.state.model, self.job, path)
            return path
        if self.config.initial_load_path:
            parts = ("model",) if self.config.initial_load_model_only else ("model", "optimizer", "dataloader")
            return self._load(Path(self.config.initial_load_path), parts)
        return None

    def save(self, step: int) -> bool:
        """Save a checkpoint if one is due after `step`; return whether one was saved."""
        self.state.step = step
        if not self._is_due(step):
            return False
        # Two saves at once would mix their collectives in the one process group that both use.
        self.wait()
        path = self._new_folder(step)
        if step == self.last_step and self.config.last_save_in_hf:
            save_weights(self.state.model, self.job, path)
        elif step == self.last_step and self.config.last_save_model_only:
            save(self._weights_to_export(), checkpoint_id=path)
        elif self._group:
            state, group = self.state.gather(), self._group
            self._saving = async_save(state, checkpoint_id=path, process_group=group, async_stager=self._stager)  # type: ignore[assignment]
        else:
            save(self.state.gather(), checkpoint_id=path)
        self._delete_oldest()
        return True

    def save_seed(self) -> Path:
        """Save the current weights as a seed checkpoint, from which other runs can start, and return its folder."""
        path = self._new_folder(0)
        save({"model": get_model_state_dict(self.state.model)}, checkpoint_id=path)
        return path

    def wait(self) -> None:
        if self._saving:
            self._saving.result()
            self._saving = None

    def _new_folder(self, step: int) -> Path:
        path = self.folder / f"step-{step}"
        if dist.get_rank() == 0:
            resume.write(path, self.made)
        return path

    def _resume(self, path: Path) -> Path:
        """Load all state from the checkpoint at `path`, and compare the saving run's settings with those of this run.

        The differences are stored in `audit`.
        """
        self._load(path, ("model", "optimizer", "dataloader", "train_state"))
        before = resume.read(path)
        if before and self.takes_seed:
            self.made = {**self.made, "seed": before.get("seed")}
        self.audit = resume.audit(before, self.made, self.state.step, self.config.exclude_from_loading)
        self.notes.append(self.audit.text(path, self.state.step))
        return path

    def _is_due(self, step: int) -> bool:
        config = self.config
        first = step == 1 and config.enable_first_step_checkpoint
        due = first or step % config.interval == 0 or step == self.last_step
        return config.enable and not config.load_only and due

    def _weights_to_export(self) -> StateDict:
        # A last save is for evaluation: weights alone, in a type that other programs want.
        dtype = getattr(torch, self.config.export_dtype)
        weights = get_model_state_dict(self.state.model)
        return {"model": {name: value.to(dtype) for name, value in weights.items() if isinstance(value, Tensor)}}

    def _load(self, path: Path, parts: tuple[str, ...]) -> Path:
        if not (path / ".metadata").is_file():
            steps = ", ".join(map(str, self._complete_steps()))
            hint = f"choose a complete one: {self.folder} has " + (f"step {steps}" if steps else "none")
            raise CheckpointError(f"{path} is not a complete checkpoint", hint)
        made = resume.read(path) or {}
        # A checkpoint from elsewhere has no record of its model, and is tried.
        if made.get("model", self.made["model"]) != self.made["model"]:
            raise CheckpointError(
                f"{path} holds the weights of {made['model']}, and this run trains {self.made['model']}",
                "choose that model, or another checkpoint",
            )
        target = {
            part: value
            for part, value in self.state.gather().items()
            if part in parts and part not in self.config.exclude_from_loading
        }
        if "dataloader" in target:
            # Older checkpoints have only a part of it.
            saved = PlainReader(path).read_metadata().state_dict_metadata
            target["dataloader"] = {k: v for k, v in target["dataloader"].items() if f"dataloader.{k}" in saved}
        load(target, storage_reader=PlainReader(path), planner=PlainPlanner())
        self.state.restore(target)
        return path

    def _path_to_resume(self) -> Path | None:
        """Return the path of the checkpoint to resume from; None if there is none.

        If `load_step` is set, this is the checkpoint of that step. Otherwise it is the newest complete checkpoint from
        which a run can resume: a seed checkpoint, or a checkpoint with more than weights.
        """
        if self.config.load_step >= 0:
            return self.folder / f"step-{self.config.load_step}"
        # The newest may be a last save, which has weights only.
        paths = (self.folder / f"step-{step}" for step in reversed(self._complete_steps()))
        return next((path for path in paths if path.name == SEED or _is_resumable(path)), None)

    def _complete_steps(self) -> list[int]:
        # PyTorch writes `.metadata` after all other files of a checkpoint.
        matches = [(_STEP_FOLDER.fullmatch(path.name), path) for path in self.folder.glob("step-*")]
        return sorted(int(match[1]) for match, path in matches if match and (path / ".metadata").exists())

    def _delete_oldest(self) -> None:
        keep = self.config.keep_latest_k
        # All ranks share the folder: only one may delete, and only checkpoints that are complete.
        if dist.get_rank() == 0 and keep > 0:
            # Step 0 is the seed checkpoint, from which other runs start, so it is never deleted.
            for step in [step for step in self._complete_steps() if step][:-keep]:
                shutil.rmtree(self.folder / f"step-{step}")


def _build_stager(*, pinned: bool) -> DefaultStager:
    """Return the object that copies the state to CPU memory before an asynchronous save; then training continues.

    With `pinned` and CUDA, the copy is in pinned memory. This memory is faster to fill, and is kept for the next
    checkpoint.
    """
    use = pinned and torch.cuda.is_available()
    return DefaultStager(
        StagingOptions(use, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=use)
    )


def _is_resumable(path: Path) -> bool:
    """Return whether the checkpoint at `path` has more than weights; only then can a run resume from it."""
    return "train_state.step" in PlainReader(path).read_metadata().state_dict_metadata
