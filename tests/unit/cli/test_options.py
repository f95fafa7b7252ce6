"""Verbs take the declared options as flags: in their place, with their help, read from text."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from trainables.errors import ConfigError
from tune_dml import cli
from tune_dml.cli import application
from tune_dml.cli._command import normalize_flags
from tune_dml.cli.options import ReportOptions, absolute, engine_of, seeds_of, settings_of, values_of, verb
from tune_dml.planning.request import Request, Resources, Session


@dataclass(frozen=True)
class Colour:
    red: Annotated[int, typer.Option(help="How much red.")]
    green: Annotated[float, typer.Option("-g", help="How much green.")] = 0.5


def app_of(function):
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(verb(function))
    return lambda *words: CliRunner().invoke(app, words)


def test_a_group_of_options_expands_in_its_position():
    seen = []

    def paint(what: str, *, coats: int = 1, colour: Colour, quiet: bool = False) -> None:
        """Paint it."""
        seen.append((what, coats, colour, quiet))

    run = app_of(paint)
    assert run("wall", "--red", "3", "-g", "0.1", "--coats", "2").exit_code == 0
    assert run("door", "--red", "4", "--quiet").exit_code == 0
    assert seen == [("wall", 2, Colour(3, 0.1), False), ("door", 1, Colour(4), True)]
    assert run("door").exit_code == 2
    shown = run("--help").output
    assert "Paint it." in shown
    assert shown.index("--coats") < shown.index("--red") < shown.index("How much green.") < shown.index("--quiet")


def test_a_verb_receives_typed_options():
    seen = []

    def study(request: Request, *, resources: Resources, session: Session, ending: ReportOptions) -> None:
        """Study it."""
        seen.append((request, resources, session, ending))

    run = app_of(study)
    words = "sec_rho --seeds 0,3 --set loss.margin=0.2 --set loss.name=triplet --data-root mine --workers 2 --margin 2"
    assert run(*words.split(), "--storage", "kept", "--json").exit_code == 0
    settings = {"loss.margin": 0.2, "loss.name": "triplet"}
    request = Request("sec_rho", data_root=Path("mine"), seeds=(0, 3), settings=settings, margin=2.0)
    session = Session(storage=Path("kept"))
    assert seen == [(request, Resources(workers=2, engine="train"), session, ReportOptions(as_json=True))]
    for wrong in (["--seeds", "none"], ["--set", "loss.margin"]):
        assert isinstance(run("sec_rho", *wrong).exception, ConfigError)


def test_a_parameter_with_the_name_of_an_option_is_that_option():
    seen = []

    def look(*, storage: Path, tracking_uri: str | None) -> None:
        """Look at it."""
        seen.append((storage, tracking_uri))

    run = app_of(look)
    assert run().exit_code == 0
    assert run("--storage", "x", "--tracking-uri", "y").exit_code == 0
    assert seen == [(Session().storage, None), (Path("x"), "y")]
    assert "Folder that stores sweeps" in run("--help").output


def test_a_module_with_an_order_is_a_verb(tmp_path, monkeypatch):
    (tmp_path / "greet.py").write_text(
        '"""`tune-dml greet`."""\n'
        "from tune_dml.cli.options import Json, verb\n"
        "ORDER = 1\n"
        "@verb\n"
        "def greet(name: str, as_json: Json = False) -> None:\n"
        '    """Greet somebody."""\n'
        '    print("Hello", name)\n'
    )
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    try:
        shown = CliRunner().invoke(application(), ["--help"]).output
        assert ["greet", "Greet", "somebody"] in [line.split() for line in shown.splitlines()]
        assert CliRunner().invoke(application(), ["greet", "Ada"]).output == "Hello Ada\n"
    finally:
        sys.modules.pop("tune_dml.cli.greet", None)


def test_texts_of_options_are_parsed():
    assert (seeds_of(None), seeds_of("3"), seeds_of("3,"), seeds_of("0,1,7")) == (None, 3, (3,), (0, 1, 7))
    assert settings_of(["a.b=1", "c=x=y", "d=null"]) == {"a.b": 1, "c": "x=y", "d": None}
    assert settings_of(["a=1", "a=1.0"]) == {"a": 1}
    with pytest.raises(ConfigError, match="a setting has one value, but got 'a=1 and a=2'"):
        settings_of(["a=1", "a = 1", "a=2"])
    assert values_of(["a.b=1, 2.5", "c=x"]) == {"a.b": [1, 2.5], "c": ["x"]}
    assert (engine_of(1, None), engine_of(2, None), engine_of(1, "train")) == ("local", "train", "train")
    with pytest.raises(ConfigError, match="KEY=VALUE") as error:
        settings_of(["a.b", "=3", "c=1"])
    assert len(error.value.problems) == 2
    for text in ("0", "-1", "x", "", "1.5"):
        with pytest.raises(ConfigError, match="at least 1"):
            seeds_of(text)


def test_a_path_is_made_absolute_without_disk_access():
    assert absolute(Path("nowhere/../here")) == Path.cwd() / "here"
    assert absolute(Path("~/x")) == Path.home() / "x"
    assert absolute(None) is None


def test_underscores_in_flags_become_dashes_and_values_stay_unchanged():
    typed = "sweep my_space --data_root /my_data --num_samples=3 --set loss.name=dro_topk --a__b --set=l.m_x=a_b -o a_b"
    meant = "sweep my_space --data-root /my_data --num-samples=3 --set loss.name=dro_topk --a__b --set=l.m_x=a_b -o a_b"
    assert normalize_flags(typed.split()) == meant.split()


@pytest.mark.parametrize("words", [("--help",), ("datasets", "--help")])
def test_the_help_shortens_no_summary(command_line, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = command_line(*words)
    commands = out.partition("Commands:\n")[2]
    assert commands
    assert "..." not in commands
