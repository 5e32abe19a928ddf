"""`python -m workbench`, for trees that are not installed."""

from workbench.cli import main

main()
