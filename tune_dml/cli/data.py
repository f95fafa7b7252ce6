"""`tune-dml datasets`: list the data sets, verify your copy, decode it beforehand."""

from __future__ import annotations

from typing import Annotated

import typer

from tune_dml.cli.options import Cache, DataSetArgument, Json, Root, Set, absolute, settings_of
from tune_dml.cli.screen import console_for, show

__all__ = ["datasets"]

SkipCorrupt = Annotated[bool, typer.Option(help="Leave out pictures that cannot be decoded.")]

datasets = typer.Typer(
    invoke_without_command=True, help="The data sets: list them, verify your copy, decode it beforehand."
)


@datasets.callback()
def listing(context: typer.Context, as_json: Json = False) -> None:
    """The data sets: licence, where to get them, what is expected. See also: verify, prepare."""
    from tune_dml.verbs import listings

    if context.invoked_subcommand is None:
        show(listings.datasets(), as_json)


@datasets.command()
def verify(
    name: DataSetArgument,
    root: Root = None,
    settings: Set = None,
    cache_dir: Cache = None,
    skip_corrupt: SkipCorrupt = False,
    as_json: Json = False,
) -> None:
    """Read everything: published counts and checksums, and that every picture decodes."""
    from trainables.errors import raise_if_any
    from tune_dml.verbs import datasets as verbs

    dataset = verbs.open_dataset(
        name,
        root=absolute(root),
        cache_dir=absolute(cache_dir),
        settings=settings_of(settings),
        skip_corrupt=skip_corrupt,
    )
    with verbs.working(console_for(as_json), "reading") as progress:
        found = verbs.verify(dataset, progress)
    if not as_json:
        raise_if_any(found.problems)
    show(found, as_json)
    raise typer.Exit(1 if found.problems else 0)


@datasets.command()
def prepare(
    name: DataSetArgument,
    root: Root = None,
    settings: Set = None,
    cache_dir: Cache = None,
    skip_corrupt: SkipCorrupt = False,
    as_json: Json = False,
) -> None:
    """Decode the pictures into the cache that every trial of this machine shares; goes on where it was interrupted."""
    from tune_dml.verbs import datasets as verbs

    dataset = verbs.open_dataset(
        name,
        root=absolute(root),
        cache_dir=absolute(cache_dir),
        settings=settings_of(settings),
        skip_corrupt=skip_corrupt,
    )
    with verbs.working(console_for(as_json), "decoding") as progress:
        prepared = verbs.prepare(dataset, progress)
    show(prepared, as_json)
