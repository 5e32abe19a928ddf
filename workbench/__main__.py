"""Entry point of the `workbench` command and of `python -m workbench`."""

import gc

from workbench.python_path import put_own_packages_first

NEW_OBJECTS = 100_000
"""Python collects garbage after this many new objects; its default of 700 costs a short command 5 % of its time."""


def main() -> None:
    """Run the command line, with our packages before modules of the same names in the user's folder."""
    put_own_packages_first()
    gc.set_threshold(NEW_OBJECTS)
    from workbench.console import guarded

    with guarded():
        from workbench.cli import app

        app()


if __name__ == "__main__":
    main()
