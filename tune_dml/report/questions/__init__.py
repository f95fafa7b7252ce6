"""The questions of the report, discovered in this package and in the entry-point group `tune_dml.questions`.

A question is a function decorated with `question` (about the sweep) or `knob_question` (about each knob). It returns
one section, or None if the question does not apply.
"""

import json
import pkgutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from trainables.errors import ConfigError, Problem
from trainables.methods import load_entries
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.knob import KnobAnalysis
from tune_dml.report.naming import slug
from tune_dml.report.section import Section, Text, figures_of, tables_of
from tune_dml.text import json_value, one_line, shortened

GROUP = "tune_dml.questions"
_APPENDIX = 600
_MAX_CHARACTERS = 300  # maximum number of characters of an error on the page
_SEARCHED_KNOB = 335
"""Order of a knob whose values cannot be compared: after configurations and importance, before trust."""
RENAME = "Rename the one in your package."
_NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class Question:
    """A question of the report."""

    answer: Callable[..., Section | None]  # function of the analysis and, if `about_knob`, of a knob
    order: int
    """Position on the page. Each hundred is a part of the page, in which questions about knobs come first: 100 methods,
    200 knobs, 300 cells and trust, 400 training, 500 opened tests, 600 the folded appendix."""
    about_knob: bool
    reads_traces: bool  # whether it reads histories or evidence; the terminal's summary omits such questions
    unanswered: Mapping[str, object]  # entries of verdicts.json if the question does not apply
    package: str = ""  # entry point of a question from another package, as in messages; empty for our own

    def section(self, analysis: Analysis, knob: KnobAnalysis | None) -> Section:
        """Return the answer; the section has no title if the question does not apply.

        If a question from another package raises an error, or its section cannot be written, the section states that.
        """
        try:
            answer = self.answer(analysis, *([knob] if self.about_knob else [])) or Section(data=self.unanswered)
            answer = replace(answer, knob=knob, appendix=self.appendix)
            if self.package:
                _write_in_memory(answer)
        except Exception as error:
            if not self.package:
                raise
            answer = replace(self._failure(error), knob=knob, appendix=self.appendix)
        return answer

    def _failure(self, error: Exception) -> Section:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = shortened(one_line("".join(traceback.format_exception_only(error))), _MAX_CHARACTERS)
        problem = f"The {self.package} cannot answer: {reason} (line {frame.lineno} of {Path(frame.filename).name})."
        title, name = "A question without an answer", f"problem-{slug(self.package)}"
        body = (Text(problem, badge="failed"),)
        return Section(name, title, title, body, verdicts=(problem,), findings=(problem,), data=self.unanswered)

    @property
    def appendix(self) -> bool:
        """Whether the question belongs to the appendix."""
        return self.order >= _APPENDIX

    @property
    def warns(self) -> bool:
        """Whether the section is a warning about the whole sweep, or belongs to the appendix."""
        return self.order < 100 or self.appendix


def question(
    order: int, *, reads_traces: bool = False, unanswered: Mapping[str, object] = _NOTHING
) -> Callable[[Callable[[Analysis], Section | None]], Question]:
    """Decorate a function that answers a question about the sweep; see `Question` for the arguments."""
    return lambda answer: Question(answer, order, False, reads_traces, unanswered)


def knob_question(
    order: int, *, reads_traces: bool = False, unanswered: Mapping[str, object] = _NOTHING
) -> Callable[[Callable[[Analysis, KnobAnalysis], Section | None]], Question]:
    """Decorate a function that answers a question about each knob; see `Question` for the arguments."""
    return lambda answer: Question(answer, order, True, reads_traces, unanswered)


def _questions() -> list[Question]:
    modules = [import_module(info.name) for info in pkgutil.walk_packages(__path__, f"{__name__}.")]
    questions = [value for module in modules for value in vars(module).values() if isinstance(value, Question)]
    for location, loaded in load_entries(GROUP):
        if not isinstance(loaded, Question):
            rule = "a question of the report must be a function decorated with `question` or `knob_question`"
            raise ConfigError(Problem(location, rule, str(loaded), "Decorate the function."))
        questions.append(replace(loaded, package=location))
    return sorted(questions, key=lambda item: item.order)


def _write_in_memory(section: Section) -> None:
    """Draw the figures and convert the tables and data of a section, which raises errors at once, not in the page."""
    _ = [figure.drawn for figure in section.figures], [(table.cells, table.numeric) for table in section.tables]
    json.dumps(json_value(section.data))


def answers(analysis: Analysis, *, traces: bool = True) -> tuple[Section, ...]:
    """Answer every question, in the order of the page; with `traces`, those that read histories or evidence, too.

    Raises ConfigError if two sections, tables or figures share a name.
    """
    sections = tuple(item.section(analysis, knob) for item, knob in _page_order(analysis, traces=traces))
    _refuse_clashes(sections)
    return sections


def first_sentence(analysis: Analysis) -> str:
    """Return the first sentence of the answer that is not a warning, else the first warning.

    Later questions are not answered.
    """
    pairs = sorted(_page_order(analysis, traces=False), key=lambda pair: (pair[0].warns, not pair[0].appendix))
    sentences = (one_line(item.section(analysis, knob).headline) for item, knob in pairs)
    return next(filter(None, sentences), "")


def _page_order(analysis: Analysis, *, traces: bool) -> list[tuple[Question, KnobAnalysis | None]]:
    """Return each question with each of its knobs, in the order of the page."""
    pairs: list[tuple[Question, KnobAnalysis | None]] = [
        (item, knob)
        for item in _questions()
        if traces or not item.reads_traces
        for knob in (analysis.knobs if item.about_knob else (None,))
    ]
    return sorted(pairs, key=lambda pair: _sort_key(analysis, pair[0].order, pair[1]))


def _sort_key(analysis: Analysis, order: int, knob: KnobAnalysis | None) -> tuple[int, int, int]:
    """Return a section's sort key: in each part of the page, all sections of a knob, then those of the next knob.

    A searched knob, whose values cannot be compared, comes after the configurations.
    """
    if knob is None:
        return order, 0, 0
    part = _SEARCHED_KNOB if order // 100 == 2 and knob.isolated.problem else order // 100 * 100
    return part, rank_of(analysis, knob), order


def rank_of(analysis: Analysis, knob: KnobAnalysis) -> int:
    """Return a knob's rank: by arm, then knobs that matter first, then by the largest difference between values."""
    arms = list(dict.fromkeys(item.arm for item in analysis.knobs))

    def sort_key(item: KnobAnalysis) -> tuple[int, bool, float]:
        verdict, largest = item.sensitivity.verdict, item.sensitivity.largest
        return arms.index(item.arm), verdict != "sensitive", -abs(largest.estimate) if largest else 0.0

    return sorted(analysis.knobs, key=sort_key).index(knob)


def _refuse_clashes(sections: tuple[Section, ...]) -> None:
    anchors = [section.anchor for section in sections if section.title]
    tables, figures = [table.name for table in tables_of(sections)], [figure.name for figure in figures_of(sections)]
    for kind, names in (("sections", anchors), ("tables", tables), ("figures", figures)):
        for repeated in (name for name in names if names.count(name) > 1):
            rule = f"two {kind} of the report share a name, which is their anchor or file"
            raise ConfigError(Problem("report", rule, repeated, RENAME))
