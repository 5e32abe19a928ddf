"""Entry point of the `workbench` command and of `python -m workbench`."""

from workbench.python_path import put_own_packages_first


def main() -> None:
    """Run the command line; our packages take precedence over modules of the same names in the user's folder."""
    put_own_packages_first()
    from workbench.console import guarded

    with guarded():
        from workbench.cli import app

        app()


if __name__ == "__main__":
    main()
