"""A question is one file: every file of the report includes its content, wherever the question is defined."""

import csv
import json
import sys

import pytest
from helpers.toys import STEEP, bare_sweep, write_sweep
from judging import GRID, TWO_KNOBS, judged
from pages import by_id, read

from trainables.errors import ConfigError
from tune_dml.report import headline, questions, summary, write_report
from tune_dml.report.analysis import analyse
from tune_dml.report.export.checks import _WORDS, argument_problems, condition_problems, unmet
from tune_dml.report.section import Section

TOY = '''
from tune_dml.report.drawing.canvas import Canvas
from tune_dml.report.questions import knob_question, question
from tune_dml.report.section import Card, Figure, Heading, Notes, Section, Table, TableCell, Text, text_cell
from tune_dml.report.steps import Step

@question(order=305)
def seeds(analysis):
    """How many seeds are there?"""
    n = len(analysis.seeds)
    table = Table("seeds", "The seeds.", ("seed", "square"), ((text_cell("first"), TableCell("0.3", 1 / 3)),))
    def draw(narrow):
        canvas = Canvas(100.0, 50.0)
        canvas.text(1, 1, f"{n} seeds drawn")
        return canvas
    figure = Figure("seeds", draw, "A number.", "Drawn by a toy.")
    return Section(
        "seeds", "How many seeds are there?", "Seeds",
        (Text("There are some.", badge="some"), Heading("Again"), Notes(("one <note>",)),
         table, figure),
        card=Card("some", "better"),
        verdicts=(f"{n} seeds.",), findings=("too few",), headline="Seeds are some.",
        steps=(Step("tune-dml extend", "nothing", 1, 99),), data={"toy": {"seeds": n}},
    )

@knob_question(order=205, unanswered={"doubled": None})
def doubled(analysis, knob):
    """What is twice the number of values, where that is more than six?"""
    n = 2 * len(knob.points)
    return Section("doubled", f"Twice {knob.symbol}?", "Twice", data={"doubled": n}) if n > 6 else None
'''


def install(folder, monkeypatch, entries):
    """Install a third-party package as pip does."""
    (folder / "toy_questions.py").write_text(TOY)
    information = folder / "toy_questions-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-questions\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[tune_dml.questions]\n{entries}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "toy_questions", raising=False)


def add_file(folder, monkeypatch):
    """Add a file to the folder of questions."""
    (folder / "toy.py").write_text(TOY)
    monkeypatch.setattr(questions, "__path__", [*questions.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "tune_dml.report.questions.toy", raising=False)


@pytest.mark.parametrize("how", ["installed", "a file"])
def test_a_new_question_is_in_every_file_of_the_report(how, tmp_path, monkeypatch):
    if how == "installed":
        install(tmp_path, monkeypatch, "seeds = toy_questions:seeds\ndoubled = toy_questions:doubled")
    else:
        add_file(tmp_path, monkeypatch)
    results = bare_sweep(tmp_path / "s")
    files = write_report(results, tmp_path / "report")

    page = read(files.html.read_text())
    section = by_id(page, "seeds").text
    for text in ("How many seeds are there?", "There are some. some", "Again", "one <note>", "Drawn by"):
        assert text in section
    assert by_id(page, "table-seeds").all("td")[0].attributes["data-value"] == repr(1 / 3)
    (link,) = [item for item in page.all("nav")[0].all("a") if item.attributes["href"] == "#seeds"]
    assert [item.attributes["class"] for item in link.all("span")] == ["verdict better"]
    assert link.text == "Seeds some"
    assert "Seeds are some." in by_id(page, "answer").text
    assert "tune-dml extend" in by_id(page, "answer").all("pre")[0].text
    contents = [link.attributes["href"] for link in page.all("nav")[0].all("a")]
    assert contents.index("#against-baseline") < contents.index("#seeds") < contents.index("#trust")
    assert contents.index("#doubled-regularizer-rho") == contents.index("#curve-regularizer-rho") + 1

    verdicts = json.loads(files.verdicts.read_text())
    assert verdicts["toy"] == {"seeds": 3}
    assert verdicts["knobs"][0]["doubled"] == 10
    assert verdicts["sentences"][-1] == "3 seeds."
    assert "too few" in verdicts["findings"]
    (lines,) = [list(csv.reader(path.open(newline=""))) for path in files.csv if path.stem == "seeds"]
    assert lines == [["seed", "square"], ["first", repr(1 / 3)]]
    assert r"\label{tab:seeds}" in files.latex.read_text()
    assert "3 seeds drawn</text>" in (files.folder / "figures/seeds.svg").read_text()
    short = summary(results)
    assert short.verdicts == files.summary.verdicts
    assert short.verdicts[-1] == "3 seeds."
    assert "tune-dml extend" in short.commands
    assert "too few" in files.findings


def test_a_knob_question_runs_for_each_knob(tmp_path, monkeypatch):
    add_file(tmp_path, monkeypatch)
    reported = judged(tmp_path, space=TWO_KNOBS, means={(a, b): STEEP[a] + b for a, b in GRID})
    knobs = reported.data["knobs"]
    assert [(knob["path"], knob["doubled"]) for knob in knobs] == [("regularizer.rho", 10), ("regularizer.eta", None)]
    contents = [link.attributes["href"] for link in reported.page.all("nav")[0].all("a")]
    assert "#doubled-regularizer-rho" in contents
    assert "#doubled-regularizer-eta" not in contents
    assert contents.index("#optimum-regularizer-rho") + 1 == contents.index("#curve-regularizer-eta")


def test_functions_that_are_no_questions_are_refused(steep, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "bad = toy_questions:TABLE")
    (tmp_path / "toy_questions.py").write_text("TABLE = 3\n")
    with pytest.raises(
        ConfigError, match=r"tune_dml\.questions\.bad of the package toy-questions: a question .* decorated with .*'3'"
    ):
        summary(steep.results)


class Unreadable(Exception):
    def __str__(self):
        raise OSError


@pytest.mark.parametrize(
    ("about", "body", "error"),
    [
        ("question", "1 / 0", "ZeroDivisionError: division by zero (line "),
        ("knob_question", "raise Unreadable", "Unreadable: <exception str() failed> (line "),
        ("question", "return 3", "TypeError: replace() should be called on dataclass instances (line "),
        (
            "question",
            'return Section("a", "?", "?", (Figure("b", None, "", ""),))',
            "'NoneType' object is not callable (line ",
        ),
        (
            "knob_question",
            'return Section("a", "?", "?", (Table("b", "", ("c", "d"), ((1,),)),))',
            "index out of range (line ",
        ),
        ("question", 'return Section("a", data={"b": object()})', "object is not JSON serializable (line "),
    ],
)
def test_a_question_of_a_package_that_fails_is_a_problem_of_the_page(tmp_path, monkeypatch, about, body, error):
    install(tmp_path, monkeypatch, "bad = toy_questions:bad\nseeds = toy_questions:seeds")
    own = f"@{about}(order=310, unanswered={{'own': None}})\ndef bad(*_):\n    {body}\n"
    monkeypatch.setattr("builtins.Unreadable", Unreadable, raising=False)
    (tmp_path / "toy_questions.py").write_text(TOY + own)
    results = bare_sweep(tmp_path / "s")
    files = write_report(results, tmp_path / "report")
    said = "The entry point tune_dml.questions.bad of the package toy-questions cannot answer: "
    (found,) = [finding for finding in files.findings if finding.startswith(said)]
    assert error in found
    assert found in read(files.html.read_text()).text
    assert found in summary(results).verdicts
    verdicts = json.loads(files.verdicts.read_text())
    assert (verdicts if about == "question" else verdicts["knobs"][0])["own"] is None
    assert verdicts["toy"] == {"seeds": 3}


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ('Section("run", "?", "?")', "two sections of the report share a name.*'run'"),
        ('Section("a", "?", "?", (Table("cells", "", ("a",), ((text_cell("b"),),)),))', "two tables.*'cells'"),
        ('Section("a", "?", "?", (Figure("norms", None, "", ""),))', "two figures.*'norms'"),
        ('Section("a", "?", "?", data={"cells": 1})', "two questions of the report write the same key .*'cells'"),
    ],
)
def test_two_questions_cannot_share_a_name(steep, tmp_path, monkeypatch, body, rule):
    add_file(tmp_path, monkeypatch)
    source = TOY.partition("@question")[0] + f"\n@question(order=1)\ndef clash(analysis):\n    return {body}\n"
    (tmp_path / "toy.py").write_text(source)
    with pytest.raises(ConfigError, match=rule):
        write_report(steep.results, tmp_path / "report")


def test_shared_data_of_questions_are_read_once(steep, monkeypatch):
    analysis = analyse(steep.results)
    sections = questions.answers(analysis)
    assert analysis.knobs is analysis.knobs
    assert {section.knob for section in sections} == {None, *analysis.knobs}
    keys = []
    monkeypatch.setattr(type(steep.results), "history", lambda self, key: keys.append(key) or [])
    questions.answers(analyse(steep.results), traces=False)
    assert len(keys) == len(set(keys)) <= 24  # whether training had finished
    keys.clear()
    questions.answers(analyse(steep.results))
    assert sorted(keys) == sorted(trial.key for trial in steep.results.trials)


def test_the_headline_is_the_first_verdict_and_runs_no_other_question(steep, broken, tmp_path, monkeypatch):
    one = write_sweep(tmp_path / "one", seeds=(0,), histories=False)
    for results in (steep.results, broken.results, one):
        assert headline(results) in summary(results).answer.sentences
        assert "rho matters" in headline(results)
    lost = {(cell.label, seed): ("failed", "no disk") for cell in one.cells for seed in (0,)}
    nothing = write_sweep(tmp_path / "lost", seeds=(0,), failures=lost)
    assert headline(nothing) == summary(nothing).answer.sentences[0]  # warnings are all there is
    asked = []
    monkeypatch.setattr(questions.Question, "section", lambda one, *_: asked.append(one.order) or Section("", "", ""))
    assert headline(steep.results) == ""
    assert asked[0] > 97  # warnings, and the appendix, come after every verdict
    assert asked[-5:] == [93, 94, 95, 96, 97]


@pytest.fixture(scope="module")
def verdicts(steep):
    """Return the verdicts of a sweep, and of one more cell with a name of several words."""
    found = json.loads(steep.files.verdicts.read_text())
    found["cells"].append(found["cells"][-1] | {"label": "SoftTriple (our) and more"})
    return found


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("sensitive(regularizer.rho)", True),
        ("sensitive(rho) and at_edge", True),
        ("not sensitive", False),
        ("not at_edge", False),
        ("at_edge(rho) and not interior and complete and not failed", True),
        ("better(rho=0.01) and not worse", True),
        ("insensitive or_so", None),
        ("confirmed", False),
        ("not better(SoftTriple (our) and more) and complete", True),
        ("still_gaining", True),
    ],
)
def test_conditions_are_evaluated(verdicts, condition, holds):
    if holds is None:
        assert condition_problems([condition])
        return
    assert condition_problems([condition]) == []
    assert argument_problems([condition], verdicts) == []
    assert (unmet([condition], verdicts) == []) is holds


def test_unmet_conditions_and_unknown_arguments_are_named(verdicts):
    assert unmet(["sensitive(rho) and not at_edge", "not better"], verdicts) == ["not at_edge", "not better"]
    problems = argument_problems(["sensitive(regularizer.roh)", "better(rho=7)"], verdicts)
    assert [str(problem).count("of the sweep") for problem in problems] == [1, 1]
    assert "regularizer.rho" in str(problems[0])


def test_every_condition_can_be_evaluated_on_an_empty_sweep(broken):
    verdicts = json.loads(broken.files.verdicts.read_text())
    for word in _WORDS:
        assert unmet([word], verdicts) in ([], [word])
