"""What writes the artefacts of a run. Each recorder is usable in any training script by two lines.

Importing this package is cheap and does not load torch: the collector, a process beside the ranks, lives here too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.recorders.facade import Recorders as Recorders
    from trainer.recorders.options import RecorderOptions as RecorderOptions

__all__ = ["RecorderOptions", "Recorders"]


def __getattr__(name: str) -> Any:
    """Load the facade, and torch with it, when it is first asked for."""
    if name == "RecorderOptions":
        from trainer.recorders.options import RecorderOptions

        return RecorderOptions
    if name == "Recorders":
        from trainer.recorders.facade import Recorders

        return Recorders
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
