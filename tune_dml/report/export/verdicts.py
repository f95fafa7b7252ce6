"""Write verdicts.json: the numbers of the page in full precision; docs/verdicts.schema.json describes the keys."""

import json
from collections.abc import Sequence

from trainables.errors import ConfigError, Problem
from tune_dml.report.analysis import Analysis
from tune_dml.report.questions import RENAME
from tune_dml.report.section import Section
from tune_dml.report.summary import answer_of
from tune_dml.text import json_value

SCHEMA = "tune_dml.verdicts/3"


def verdicts_text(analysis: Analysis, sections: Sequence[Section]) -> str:
    """Return the verdicts as JSON text; numbers that are not finite become null."""
    plan = analysis.results.plan
    knobs: dict[str, dict[str, object]] = {knob.key: {} for knob in analysis.knobs}
    body: dict[str, object] = {
        "schema": SCHEMA,
        "sweep": analysis.results.name,
        "space": plan.space.name,
        "dataset": plan.dataset,
        "data_digest": plan.data_digest,
        "protocol_version": plan.protocol_version,
        "plan": plan.identity(),
        "mlflow_parent_run": analysis.results.parent_run_id or None,
        "metric": {"key": analysis.metric.key, "label": analysis.metric.axis, "goal": analysis.goal},
        "margin": analysis.margin,
        "seeds": analysis.seeds,
        "answer": _answer(analysis, sections),
        "sentences": [sentence for section in sections for sentence in section.verdicts],
        "findings": [finding for section in sections for finding in section.findings],
        "knobs": list(knobs.values()),
    }
    for section in sections:
        target = knobs[section.knob.key] if section.knob else body
        for name, value in section.data.items():
            if name in target:
                rule = "two questions of the report write the same key of verdicts.json"
                raise ConfigError(Problem("report", rule, name, RENAME))
            target[name] = value
    return json.dumps(json_value(body), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _answer(analysis: Analysis, sections: Sequence[Section]) -> dict[str, object]:
    answer = answer_of(analysis, sections)
    names = ("command", "settles", "chance", "trials")
    step = answer.step and {**{name: getattr(answer.step, name) for name in names}, "cost": answer.cost}
    return {"sentences": answer.sentences, "next": step, "facts": dict(answer.facts)}
