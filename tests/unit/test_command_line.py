"""Options are named once: what a session takes as keywords is what the command line takes as flags."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from trainables.errors import ConfigError
from tune_dml.cli.options import Asked, SessionFlags, WorkerFlags, spread
from tune_dml.planning.session import Session, SessionOptions


def names(group):
    return {field.name for field in fields(group)}


def test_keywords_session_and_flags_are_the_same_options():
    assert names(Session) == set(SessionOptions.__annotations__)
    assert names(SessionFlags) | {"console"} == names(Session)
    assert {field.name: field.default for field in fields(SessionFlags)} == {
        field.name: field.default for field in fields(Session) if field.name != "console"
    }
    console = object()
    given = {name: f"{name}!" for name in names(SessionFlags)}
    assert SessionFlags(**given).keywords(console) == {**given, "console": console}


def test_what_a_sweep_is_about_is_what_run_sweep_and_request_for_take():
    from tune_dml.api import run_sweep
    from tune_dml.planning.checks import request_for

    asked = set(Asked().keywords())
    assert asked == names(Asked)
    for takes in (run_sweep, request_for):
        assert asked <= set(inspect.signature(takes).parameters)


def test_text_is_read_once_and_paths_belong_to_who_typed_them():
    keywords = Asked(seeds="0,3", settings=["loss.margin=0.2"], data_root=Path("mine")).keywords()
    assert keywords["seeds"] == (0, 3)
    assert keywords["settings"] == {"loss.margin": 0.2}
    assert keywords["data_root"] == Path.cwd() / "mine"
    for wrong in (Asked(seeds="none"), Asked(settings=["loss.margin"])):
        with pytest.raises(ConfigError):
            wrong.keywords()


@pytest.mark.parametrize(
    ("workers", "asked", "engine"), [(1, None, "local"), (2, None, "train"), (1, "train", "train")]
)
def test_the_engine_follows_the_number_of_workers(workers, asked, engine):
    assert WorkerFlags(workers=workers).resources(asked).engine == engine


def test_limits_are_checked_with_the_store():
    wrong = Session(max_concurrent=0, time_budget=-1.0, tracking_uri="http://127.0.0.1:9")
    assert [problem.value for problem in wrong.problems()] == ["http://127.0.0.1:9", 0, -1.0]
    assert not Session().problems()


@dataclass(frozen=True)
class Colour:
    """A group of options."""

    red: Annotated[int, typer.Option(help="How much red.")]
    green: Annotated[float, typer.Option("-g", help="How much green.")] = 0.5


def test_a_group_of_options_is_spread_in_its_place():
    seen = []
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    @spread
    def paint(what: str, *, coats: int = 1, colour: Colour, quiet: bool = False) -> None:
        """Paint it."""
        seen.append((what, coats, colour, quiet))

    run = CliRunner().invoke
    assert run(app, ["wall", "--red", "3", "-g", "0.1", "--coats", "2"]).exit_code == 0
    assert run(app, ["door", "--red", "4", "--quiet"]).exit_code == 0
    assert seen == [("wall", 2, Colour(3, 0.1), False), ("door", 1, Colour(4), True)]
    assert run(app, ["door"]).exit_code == 2
    shown = run(app, ["--help"]).output
    assert "Paint it." in shown
    assert shown.index("--coats") < shown.index("--red") < shown.index("How much green.") < shown.index("--quiet")
