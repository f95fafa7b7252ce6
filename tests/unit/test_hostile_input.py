"""Files and folders that somebody spoilt, by mistake or on purpose: one clear line each, at once."""

import json
import stat
import time

import pytest
from typer.testing import CliRunner

from trainables.errors import ConfigError
from tune_dml.cli import _supervisor, application
from tune_dml.cli.screen import show
from tune_dml.planning.files.yaml_file import read_mapping
from tune_dml.record.imported import ImportRequest, read_csv
from tune_dml.record.ledger import Ledger


def run(*words):
    return CliRunner().invoke(application(), list(map(str, words)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
        ), "20,000 values"),
        ("values: [" + "1, " * 200_000 + "1]\n", "20,000 values"),
        ("a: " + "x" * 1_100_000, "1,000,000 characters"),
    ],
    ids=["aliases", "values", "characters"],
)  # fmt: skip
def test_a_sweep_file_that_would_keep_plan_busy_is_refused_in_a_moment(tmp_path, text, why):
    (tmp_path / "bomb.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError, match=why):
        read_mapping(tmp_path / "bomb.yaml")
    assert time.process_time() - began < 60


def test_an_alias_that_is_used_twice_is_read(tmp_path):
    (tmp_path / "fine.yaml").write_text("a: &a [1, 2]\nb: *a\n")
    assert read_mapping(tmp_path / "fine.yaml") == {"a": [1, 2], "b": [1, 2]}


def test_a_linked_sweep_is_not_removed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "plan.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    done = run("rm", "link", "--yes", "--storage", tmp_path)
    assert isinstance(done.exception, ConfigError)
    assert "is a link to" in str(done.exception)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "plan.json").exists()


def test_json_has_no_nan(capsys):
    class View:
        def data(self):
            return {"rows": [{"difference": float("nan"), "bar": (1.0, float("inf"))}], "count": 2}

    show(View(), True)
    said = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert said == {"rows": [{"difference": None, "bar": [1.0, None]}], "count": 2}


def test_a_huge_field_of_a_table_is_named(tmp_path):
    (tmp_path / "runs.csv").write_text(f"loss.margin,recall\n0.1,{'9' * 140_000}\n")
    with pytest.raises(ConfigError, match=r"line \d+: must be a table that can be read"):
        read_csv(tmp_path / "runs.csv", ImportRequest("runs", metric="recall"))


def test_list_names_a_corrupt_plan_alone(tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "plan.json").write_text("{")
    done = run("list", "--storage", tmp_path)
    assert isinstance(done.exception, ConfigError)
    assert "plan.json" in str(done.exception)
    assert "No sweep" not in done.output


def test_modules_that_vanish_while_a_sweep_runs_are_said(monkeypatch):
    import tune_dml.cli

    monkeypatch.setattr(tune_dml.cli, "iter_modules", lambda path: [])
    with pytest.raises(ConfigError, match="modules are gone"):
        _supervisor.flags_of("sweep", {})


def test_a_ledger_is_its_owners_alone(tmp_path):
    with Ledger(tmp_path):
        pass
    assert stat.S_IMODE((tmp_path / "ledger.jsonl").stat().st_mode) == 0o600
