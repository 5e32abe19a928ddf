"""Print the resolved configuration: python -m trainer.config --config x.toml --training.steps 5."""

import sys

from trainer.config.load import load
from trainer.config.schema import help_text, toml
from trainer.errors import ConfigError


def main(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(help_text("python -m trainer"))
        return 0
    try:
        print(toml(load(None, arguments)))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
