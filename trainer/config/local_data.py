"""Check that the configured data and checkpoint exist and can be read, before any process of the job starts."""

from pathlib import Path

from trainer.config.sections import JobConfig
from trainer.errors import DataError
from trainer.local_data import Files, Position, Split, local_files

_COMPLETE = ".metadata"
"""The file that PyTorch writes last into the folder of a checkpoint: if it exists, the checkpoint is complete."""


def check_local_data(config: JobConfig) -> None:
    """Check the training data at a configured path by reading their first record; also the validation data, if used.

    Raises:
        DataError: The data are missing or damaged, or the package that reads them is not installed.
    """
    sources = [(config.training.dataset_path, Split.TRAIN)]
    if config.validation.enable:
        sources.append((config.validation.dataset_path, Split.VALIDATION))
    for path, split in sources:
        if path:
            next(iter(Files(local_files(Path(path), split)).records(Position())), None)


def check_initial_checkpoint(config: JobConfig) -> None:
    """Check that `checkpoint.initial_load_path` is a complete checkpoint, if the run would load it.

    Raises:
        DataError: The checkpoint is not complete. The hint names a complete checkpoint in that folder, if there is one.
    """
    checkpoint = config.checkpoint
    if not (checkpoint.enable and checkpoint.initial_load_path) or checkpoint.initial_load_in_hf:
        return
    path, own = Path(checkpoint.initial_load_path), Path(config.job.dump_folder, checkpoint.folder)
    # A checkpoint of the run's own goes before the initial one, which is then not loaded.
    if checkpoint.create_seed_checkpoint or (path / _COMPLETE).is_file() or any(own.glob(f"step-*/{_COMPLETE}")):
        return
    inside = sorted(
        (found.parent for found in path.glob(f"**/step-*/{_COMPLETE}")), key=lambda found: found.stat().st_mtime
    )
    fault = "is not a complete checkpoint" if path.exists() else "does not exist"
    hint = (
        f"give --checkpoint.initial_load_path {inside[-1]}" if inside else "give the folder of a step, such as step-10"
    )
    raise DataError(f"checkpoint.initial_load_path {path} {fault}", hint)
