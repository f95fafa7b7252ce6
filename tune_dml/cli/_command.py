"""A verb as Click runs it: its help ends with examples, and a flag that is the beginning of another one finds it."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # Click's own, which Typer may bring along


class Command(typer.core.TyperCommand):
    """One verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As Click does; `--gpus` is answered with `--gpus-per-worker` too."""
        try:
            return list(super().parse_args(ctx, args))
        except _USAGE_ERROR as error:
            if (wrong := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
                flags = [flag for option in self.params for flag in option.opts]
                longer = {flag for flag in flags if flag.startswith(f"{wrong}-")}
                error.possibilities = sorted({*longer, *(error.possibilities or [])})
            raise


def epilog(examples: str) -> str:
    """Examples as they stand, below the options."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()) if examples else ""
