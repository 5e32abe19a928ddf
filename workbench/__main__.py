"""The `workbench` command, also as `python -m workbench`."""

from workbench.python_path import put_own_packages_first


def main() -> None:
    """Run the command line, with our packages before modules of the same names in the user's folder."""
    put_own_packages_first()
    from workbench.console import guarded

    with guarded():
        from workbench.cli import app

        app()


if __name__ == "__main__":
    main()
