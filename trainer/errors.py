"""Errors that are shown to the user: what went wrong, and what to do about it."""


class TrainerError(Exception):
    """Base class of all errors that are shown to the user; `hint` says what to do next."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}"


class ConfigError(TrainerError):
    """The configuration cannot be read, or has a setting that this trainer does not support."""


class DataError(TrainerError):
    """The data cannot be read, or are too few."""


class CheckpointError(TrainerError):
    """A checkpoint is missing or damaged, or does not fit the model."""
