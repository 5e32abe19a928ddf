"""Build the loader of the configured data: text that is cut into sequences, or rows for fine-tuning."""

import logging
from pathlib import Path

from trainer.config import JobConfig
from trainer.config.sections import Training
from trainer.data.loader import Loader, RowLoader, Share
from trainer.data.rows import has_rows, read_rows
from trainer.data.text import documents, local_files
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import DataError
from trainer.models.decoder import model_args

logger = logging.getLogger("root")


def build_loader(config: JobConfig, source: Training, share: Share, seq_len: int) -> Loader:
    """Return the loader of a rank's share of the data that `source` names, with the configured tokenizer.

    Raises:
        DataError: There are no such data, or they do not go with the configured parallelism.
    """
    tokenizer = load_tokenizer(config.model.hf_assets_path, model_args(config).vocab_size)
    files = local_files(Path(source.dataset_path)) if source.dataset_path else []
    try:
        are_rows = bool(files) and has_rows(files[0])
    except OSError as error:
        raise DataError(f"{files[0]}: {error.strerror}", "give --training.dataset_path a file or folder") from error
    if not are_rows:
        return Loader(documents(source, config.debug.seed or 0), seq_len, share, tokenizer)
    check_parallelism(config)
    loader = RowLoader(read_rows(files, tokenizer), seq_len, share, tokenizer.eos)
    # Every rank reads all rows, so that one warning is enough.
    if loader.cut and not share.rank:
        logger.warning("%d rows are longer than %d tokens, and were cut", loader.cut, seq_len + 1)
    return loader


def check_parallelism(config: JobConfig) -> None:
    """Refuse what cannot keep the rows of a sequence apart.

    Raises:
        DataError: Sequences or layers are divided among ranks, or blocks are compiled.
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
