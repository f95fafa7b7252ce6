"""CSV, LaTeX and JSON have the numbers of the page; intervals are clipped to the range of a metric."""

import csv
import math
import re
import sys
from pathlib import Path

import pytest
from helpers.toys import bare_sweep
from pages import by_id, read

from tune_dml.report import summary, write_report
from tune_dml.report.analysis import analyse
from tune_dml.report.drawing.paper import render_file
from tune_dml.report.export import SCHEMA
from tune_dml.report.export.tables import csv_text, escape, latex_text, markdown_text
from tune_dml.report.naming import metric_name
from tune_dml.report.questions import answers
from tune_dml.report.section import Table, TableCell, figures_of
from tune_dml.text import value_text

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))
from generate_schema import Verdicts


def test_csv_equals_the_page_and_neutralises_formulas(steep):
    page = read(steep.html)
    names = {path.stem for path in steep.files.csv}
    assert names >= {"cells", "trials", "cost", "baseline"}
    assert names >= {"differences-regularizer-rho", "agreement-regularizer-rho-1"}
    for path in steep.files.csv:
        lines = list(csv.reader(path.open(newline="")))
        table = by_id(page, f"table-{path.stem}")
        rows = [row for row in table.all("tr") if row.all("td")]
        assert lines[0] == [cell.text for cell in table.all("thead")[0].all("th")]
        assert len(rows) == len(lines) - 1
        for row, line in zip(rows, lines[1:], strict=True):
            for cell, field in zip(row.children, line, strict=True):
                if "data-value" in cell.attributes:
                    assert float(cell.attributes["data-value"]) == float(field)
    formula = Table("t", "", ("a", "b"), ((TableCell("=HYPERLINK(1)"), TableCell("-3.00", -3.0)),))
    assert csv_text(formula) == "a,b\n'=HYPERLINK(1),-3.0\n"


def test_repr_of_a_report_is_one_line(steep):
    assert re.fullmatch(r"<Report of \w+: \S+/report.html and \d+ more files>", repr(steep.files))


def test_latex_is_balanced_and_rectangular(steep, broken):
    for written in (steep, broken):
        text = written.files.latex.read_text()
        for environment in ("table", "tabular"):
            assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}") > 0
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
        for columns, body in re.findall(r"\\begin{tabular}{(\w+)}\n(.*?)\\end{tabular}", text, re.DOTALL):
            for line in body.splitlines():
                if line.endswith(r"\\"):
                    assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
        uncommented = re.sub(r"^%.*$", "", text, flags=re.MULTILINE).replace("tab:", "")
        assert not re.search(r"(?<!\\)[%_#](?!.*\n?% )", uncommented)


def test_latex_has_the_rounded_numbers_of_the_page_and_is_escaped(steep):
    text = steep.files.latex.read_text()
    cells = by_id(read(steep.html), "table-cells")
    numbers = {cell.text for cell in cells.every() if "data-value" in cell.attributes}
    assert len(numbers) > 6
    assert not [number for number in numbers if number not in text]
    assert escape("50% of a_b & ρ<1 {x} \\") == (
        r"50\% of a\_b \& \ensuremath{\rho}\ensuremath{<}1 \{x\} \textbackslash{}"
    )
    table = Table("t", "c", ("a_b",), ((TableCell("-1.00", -1.0),),))
    assert "$-1.00$" in latex_text([table], "h")
    rows = latex_text([Table("t", "c", ("a",), (("[ours]",), ("*best",)))], "h").splitlines()
    assert {r"{}[ours] \\", r"{}*best \\"} <= set(rows)  # else the rows would begin with arguments


def test_json_follows_its_published_schema(steep, broken):
    for written in (steep, broken):
        found = Verdicts.model_validate_json(written.files.verdicts.read_text(), strict=True)
        assert found.version == SCHEMA
        assert found.answer.sentences == list(written.files.summary.answer.sentences)
        assert found.answer.next is not None
        assert found.answer.next.command == written.files.summary.commands[0]
        (knob,) = found.knobs
        if knob.optimum is not None and knob.optimum.p_best:
            assert sum(knob.optimum.p_best.values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_figures_are_written_as_pdf_and_png_when_asked(steep, tmp_path):
    assert {path.suffix for path in steep.files.figures} == {".svg"}
    few = bare_sweep(tmp_path / "few")
    files = write_report(few, tmp_path / "report", forms=("pdf", "png"))
    drawn = {path.stem for path in files.figures if path.suffix == ".svg"}
    for form, magic in ((".pdf", b"%PDF"), (".png", b"\x89PNG")):
        written = [path for path in files.figures if path.suffix == form]
        assert {path.stem for path in written} == drawn
        assert all(path.read_bytes().startswith(magic) for path in written)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pdf", "png"])
def test_a_figure_has_the_same_bytes_each_time(steep, form):
    canvas = figures_of(answers(analyse(steep.results)))[0].views[0].draw(False)
    assert render_file(canvas, form) == render_file(canvas, form)


def test_markdown_has_the_rows_of_latex(steep):
    text = steep.files.markdown.read_text()
    tables = text.count("\n| ---")
    assert tables == steep.files.latex.read_text().count(r"\begin{tabular}")
    odd = Table("t", "a|b\nc", ("x|y",), ((TableCell("<b>1</b>\n2"),),))
    assert "**a\\|b c**" in markdown_text([odd], "h")
    assert "| &lt;b>1&lt;/b> 2 |" in markdown_text([odd], "h")


def test_json_cells_are_the_means_of_their_trials(broken):
    data = broken.data
    metrics = {trial["trial"]: trial["metrics"].get("val/recall_at_1") for trial in data["trials"]}
    assert len(data["cells"]) == 6
    for cell in data["cells"]:
        values = [metrics[trial["trial"]] for trial in cell["trials"] if metrics[trial["trial"]] is not None]
        assert cell["n"] == len(values)
        if values:
            assert cell["mean"] == pytest.approx(sum(values) / len(values))


def test_summary_agrees_with_the_report(steep):
    found = summary(steep.results)
    assert repr(found.rows) == repr(steep.files.summary.rows)  # since Python 3.13 no row with a nan equals another
    assert found.verdicts == steep.files.summary.verdicts
    assert found.counts == {"finished": 18}
    row = found.rows[1]
    assert row.label == "rho=0.01"
    assert (row.n, row.planned) == (3, 3)
    assert row.low < row.mean < row.high
    assert row.difference == pytest.approx(row.mean - found.rows[0].mean)
    assert math.isnan(found.rows[0].difference)


def test_metric_names_are_labelled():
    percents = {
        "val/recall_at_1": "validation R@1",
        "test/map_at_r": "test MAP@R",
        "val/ndcg_at_10": "validation nDCG@10",
    }
    others = {
        "train/norm_variance": "training norm variance",
        "train/active_pairs": "training active pairs",
        "loss": "loss",
    }
    found = {key: metric_name(key) for key in percents | others}
    assert {key: name.label for key, name in found.items()} == percents | others
    assert [key for key, name in found.items() if name.percent] == [*percents]


def test_numbers_are_formatted_for_reading():
    recall, variance = metric_name("val/recall_at_1"), metric_name("train/norm_variance")
    assert recall.number(67.891) == "67.89"
    assert recall.number(-0.001) == "0.00"
    assert recall.signed(1.234) == "+1.23"
    assert recall.signed(-1.234) == "-1.23"
    assert recall.amount(1) == "1.00 points"
    assert recall.number(math.nan) == "-"
    assert recall.rough(1.4e-15) == "0 points"  # a rounding error between equal means
    assert recall.rough(0.31) == "0.31 points"
    assert variance.number(0.04) == "0.04000"
    assert variance.number(12345.6) == "1.235e+04"
    assert [value_text(value) for value in (0.01, 3, True, None, "x")] == ["0.01", "3", "yes", "none", "x"]


def test_bounds_of_percentages_are_clipped_and_unknown_ones_kept() -> None:
    percent, loss = metric_name("val/recall_at_1"), metric_name("val/loss")
    assert percent.level_ends(-3.0, 120.0) == (0, 100)
    assert percent.change_ends(-120.0, 3.0) == (-100, 3)
    assert loss.level_ends(-3.0, 120.0) == loss.change_ends(-3.0, 120.0) == (-3, 120)
    assert percent.change_ends(-math.inf, math.inf) == (-math.inf, math.inf)
    assert all(map(math.isnan, percent.level_ends(math.nan, math.nan)))
