"""Let a command of ours take a person's command after `--`: its words are not options of ours."""

from typing import Any

from typer.core import TyperCommand


class CommandAfterDashes(TyperCommand):
    """A Click command that keeps the words after `--` unparsed, in `ctx.obj`: None without `--`."""

    only_with = ""
    """The option without which `--` only allows paths that begin with a dash; empty: a command always follows."""

    def options(self, words: list[str]) -> list[str]:
        """Return the words before `--`, as Click is to parse them."""
        return words

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before `--`, and store the words after it."""
        before = args[: args.index("--")] if "--" in args else args
        if "--" in args and (not self.only_with or self.only_with in before):
            ctx.obj = tuple(args[len(before) + 1 :])
            args = before
        return super().parse_args(ctx, self.options(args))


class ProveCommand(CommandAfterDashes):
    """The Click command `inspect`: only with `--prove` a command follows after `--`."""

    only_with = "--prove"
