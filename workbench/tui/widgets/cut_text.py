"""Cut texts that are longer than their place on the screen."""

from workbench.present.run_names import CUT


def fitted(label: str, width: int) -> str:
    """Return a label in at most `width` characters; a sign at its end says that it goes on."""
    return label if len(label) <= width else label[: width - 1] + CUT
