"""Check that the configured data exist and can be read, before any process of the job starts."""

from pathlib import Path

from trainer.config.sections import JobConfig
from trainer.local_data.files import Split, local_files
from trainer.local_data.records import Files, Position


def check_local_data(config: JobConfig) -> None:
    """Read the first record of the training data, and of the validation data if they are used, if a path names them.

    Raises:
        DataError: They are missing or damaged, or the package that reads them is not installed.
    """
    sources = [(config.training.dataset_path, Split.TRAIN)]
    if config.validation.enable:
        sources.append((config.validation.dataset_path, Split.VALIDATION))
    for path, split in sources:
        if path:
            next(iter(Files(local_files(Path(path), split)).records(Position())), None)
