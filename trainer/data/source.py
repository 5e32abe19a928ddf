"""Build the loader for the configured data: text that is cut into sequences, or rows for fine-tuning."""

from pathlib import Path

from trainer.config import JobConfig
from trainer.config.refusals import NO_DATA
from trainer.config.sections import Training
from trainer.data.loader import Loader, RowLoader, Share
from trainer.data.rows import is_row
from trainer.data.text import training_documents
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import DataError
from trainer.local_data.files import Split, local_files
from trainer.local_data.records import Data, Files, InMemory, Position
from trainer.models.decoder import model_args

_CHECKED_AT_START = 8 << 20
"""Data of at most this many bytes are read once before the first step, so that a bad record is found at once."""


def build_loader(config: JobConfig, source: Training, share: Share, seq_len: int, split: Split = Split.TRAIN) -> Loader:
    """Return the loader of a rank's share of the data that `source` names, with the configured tokenizer.

    Raises:
        DataError: The data do not exist, or the configured parallelism does not support them.
    """
    tokenizer = load_tokenizer(config.model.hf_assets_path, model_args(config).vocab_size)
    data = _data_of(source, config.debug.seed or 0, split)
    first = next(iter(data.records(Position())), None)
    # Without any record, the loader for texts raises the error.
    if first is None or not is_row(first.fields):
        loader = Loader(data, seq_len, share, tokenizer)
    else:
        _check_parallelism(config)
        loader = RowLoader(data, seq_len, share, tokenizer)
    if isinstance(data, Files) and data.size <= _CHECKED_AT_START:
        loader.totals()
    return loader


def _data_of(source: Training, seed: int, split: Split = Split.TRAIN) -> Data:
    """Return the data at the path that `source` names; without a path, synthetic text made from `seed`.

    Raises:
        DataError: The path does not exist or has no data, or a data set is named without a path.
    """
    if source.dataset_path:
        path = Path(source.dataset_path)
        # Copies of c4 have a folder for each variant; torchtitan, too, trains on this one.
        is_c4 = source.dataset.startswith("c4") and (path / "en").is_dir()
        return Files(local_files(path / "en" if is_c4 else path, split))
    if source.dataset == "synthetic":
        return InMemory({"text": text} for text in training_documents(seed))
    raise DataError(f"data set {source.dataset!r} is not shipped", NO_DATA.format(section="training"))


def _check_parallelism(config: JobConfig) -> None:
    """Raise DataError if the configured parallelism would let the rows of a sequence attend to each other.

    This is so for context parallelism, pipeline parallelism and torch.compile.
    """
    parallelism = config.parallelism
    for key, is_on in (
        ("parallelism.context_parallel_degree", parallelism.context_parallel_degree > 1),
        ("parallelism.pipeline_parallel_degree", parallelism.pipeline_parallel_degree > 1),
        ("compile.enable", config.compile.enable),
    ):
        if is_on:
            raise DataError(
                f"rows for fine-tuning do not go with {key}: each row attends to itself alone",
                f"turn off {key}; FSDP, DDP and tensor parallelism are possible",
            )
