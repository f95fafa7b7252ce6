"""`tune-dml datasets`: list the data sets, verify your copy, decode it beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tune_dml.cli.options import Cache, DataSetArgument, Json, Root, Set, absolute, settings_of, spread
from tune_dml.cli.screen import console_for, show

if TYPE_CHECKING:
    from trainables.data.base import DataSet


datasets = typer.Typer(
    invoke_without_command=True, help="The data sets: list them, verify your copy, decode it beforehand."
)


@datasets.callback()
def listing(context: typer.Context, as_json: Json = False) -> None:
    """The data sets: licence, where to get them, what is expected. See also: verify, prepare."""
    from tune_dml.cli import listings

    if context.invoked_subcommand is None:
        show(listings.datasets(), as_json)


@dataclass(frozen=True)
class Copy:
    """Which copy of a data set, and how it is decoded."""

    name: DataSetArgument
    root: Root = None
    settings: Set = None
    cache_dir: Cache = None
    skip_corrupt: Annotated[bool, typer.Option(help="Leave out pictures that cannot be decoded.")] = False

    def open(self) -> DataSet:
        """The data set; raises ConfigError where there is none of that name or a setting is unknown."""
        from tune_dml.cli.datasets import open_dataset

        return open_dataset(
            self.name,
            root=absolute(self.root),
            cache_dir=absolute(self.cache_dir),
            settings=settings_of(self.settings),
            skip_corrupt=self.skip_corrupt,
        )


@datasets.command()
@spread
def verify(copy: Copy, as_json: Json = False) -> None:
    """Read everything: published counts and checksums, and that every picture decodes."""
    from trainables.errors import raise_if_any
    from tune_dml.cli import datasets as verbs

    dataset = copy.open()
    with verbs.working(console_for(as_json), "reading") as progress:
        found = verbs.verify(dataset, progress)
    if not as_json:
        raise_if_any(found.problems)
    show(found, as_json)
    raise typer.Exit(1 if found.problems else 0)


@datasets.command()
@spread
def prepare(copy: Copy, as_json: Json = False) -> None:
    """Decode the pictures into the cache that every trial of this machine shares; goes on where it was interrupted."""
    from tune_dml.cli import datasets as verbs

    dataset = copy.open()
    with verbs.working(console_for(as_json), "decoding") as progress:
        prepared = verbs.prepare(dataset, progress)
    show(prepared, as_json)
