"""The `workbench` command, also as `python -m workbench`."""

from workbench.python_path import put_own_packages_first


def main() -> None:
    """Run the command line, with our packages before modules of the same names in the user's folder."""
    put_own_packages_first()
    from workbench.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
