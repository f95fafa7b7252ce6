"""What was run, on which data, and what failed? Includes a table of all cells, and the cost."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from tune_dml.record.origin.commands import retry_arguments, smaller_micro_batch
from tune_dml.record.results import Results, TrialResult
from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.cell import CellAnalysis
from tune_dml.report.cells import TableCell, interval_cells, metric_cells, text_cell
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Facts, Heading, Notes, Section, Table, Text, WordTable
from tune_dml.report.steps import Step, continue_sweep
from tune_dml.space import Grid, Knob, Value
from tune_dml.text import counted, duration, flattened, value_text

_MAX_CHARACTERS = 300  # maximum number of characters of a provenance entry on the page


@question(order=600)
def run_summary(analysis: Analysis) -> Section:
    """List the facts of the sweep, its failures, cells and settings; failures are findings."""
    results, plan = analysis.results, analysis.results.plan
    failures = [(t, why.partition(": ")[2] or why) for cell in analysis.cells for t, why in cell.failures]
    notes = results.notes + plan.space.notes
    provenance = tuple((path, _provenance_text(value)) for path, value in flattened(results.provenance))
    body: list[Block] = [Facts(_facts(analysis)), Text(_progress(analysis)), _table_of_failures(failures)]
    body += [Heading("Notes"), Notes(notes)] if notes else []
    body += [_table_of_cells(analysis), *_settings(analysis)]
    body += [WordTable("Provenance: code, versions, machine", "Provenance", (), provenance)] if provenance else []
    return Section(
        "run",
        "What was run, and what failed",
        "What was run",
        body,
        headline=_headline(analysis),
        steps=_steps(analysis),
        findings=tuple(f"{t.cell.label}, seed {t.seed}: {t.status}: {reason}" for t, reason in failures),
        data={
            "counts": analysis.counts,
            "training_seconds": analysis.seconds,
            "cells": [_cell_data(analysis, cell) for cell in analysis.cells],
            "failures": [
                {"label": t.cell.label, "seed": t.seed, "status": t.status, "reason": reason, "attempts": t.attempts,
                 "key": t.key, "run_id": t.run_id}
                for t, reason in failures
            ],
            "notes": notes,
        },
    )  # fmt: skip


def _facts(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    results, plan = analysis.results, analysis.results.plan
    space, settings, backbone = plan.space, plan.base_settings, plan.base_settings.get("model.backbone")
    margin = analysis.metric.amount(analysis.margin)
    if analysis.margin != plan.margin:
        margin += f" (given later; planned: {analysis.metric.amount(plan.margin)})"
    protocols = {arm.protocol.name: arm.protocol.note for arm in plan.main_arms if arm.protocol}
    search = plan.search.method
    facts = [
        ("Question", space.question),
        ("Space", f"{space.name}: {space.title}"),
        ("Source", str(space.citation) if space.citation else ""),
        ("Knobs", "; ".join(dict.fromkeys(_domain(knob) for arm in plan.arms for knob in arm.knobs))),
        ("Arms", ", ".join(arm.name for arm in plan.arms if arm.name) if space.arms else ""),
        ("Baseline", space.baseline_name or ""),
        ("Data set", f"{plan.dataset} (content {plan.data_digest[:12]})" if plan.data_digest else ""),
        ("Read from", results.imported.source if results.imported else ""),
        ("Network", f"{backbone}, embeddings of size {settings.get('model.embedding_dim')}" if backbone else ""),
        ("Protocol", " ".join(f"{name}. {note}".strip() for name, note in protocols.items())),
        ("Judged by", analysis.metric.label + ("" if results.imported else f"; {_selection(settings)}")),
        ("Smallest difference that matters", margin),
        ("Search", search if search == "grid" else f"{search}, {counted(plan.search.num_samples, 'cell')} proposed"),
        ("Stopped early", f"{plan.search.stopping}: the best third continues" if plan.search.stopping else ""),
        ("Gradient caching", _gradient_caching(results)),
        ("Seeds", f"{', '.join(map(str, plan.seeds))} (paired: every cell uses the same seeds)"),
    ]
    return tuple((name, text) for name, text in facts if text)


def _domain(knob: Knob) -> str:
    origin = {"paper": "the paper's values", "ours": "our values", "user": "your values"}[knob.origin]
    if isinstance(knob.domain, Grid):
        return f"{knob.label} in {{{', '.join(map(value_text, knob.domain.values))}}} ({origin})"
    return f"{knob.label} in [{value_text(knob.domain.low)}, {value_text(knob.domain.high)}], {knob.domain.scale} ({origin})"


def _selection(settings: Mapping[str, Value]) -> str:
    if settings.get("data.split") == "paper_test_selection":
        return "selected on the TEST classes, as in the papers: every number here is optimistic"
    evaluations = {"last": "the last evaluation", "best_validation": "the best evaluation on validation"}
    return evaluations.get(str(settings.get("evaluation.epoch")), "the selected evaluation")


def _settings(analysis: Analysis) -> list[Block]:
    plan, columns = analysis.results.plan, ("setting", "value", "from")
    titles = ("Settings of this sweep beyond the protocol", "Settings of the protocol", "Default settings")
    groups: dict[str, list[tuple[str, ...]]] = {title: [] for title in titles}
    for key, value in plan.base_settings.items():
        origin = plan.origins.get(key, "")
        title = titles[1 if origin.startswith("protocol ") else 2 if origin == "default" else 0]
        groups[title].append((key, _text(value), origin))
    return [WordTable(f"{t} ({len(rows)})", "Settings", columns, tuple(rows)) for t, rows in groups.items() if rows]


def _waiting(analysis: Analysis) -> int:
    return analysis.counts.get("running", 0) + analysis.counts.get("missing", 0)


def _headline(analysis: Analysis) -> str:
    waiting, stopped = _waiting(analysis), Counter(cell.stopped for cell in analysis.stopped)
    sentences = []
    if waiting:
        have = "has" if waiting == 1 else "have"
        sentences.append(f"Provisional: {waiting} of {analysis.results.planned_trials} trials {have} not finished.")
    if stopped:
        steps = " and ".join(f"{count} at step {step}" for step, count in sorted(stopped.items(), key=str))
        were = "was" if len(analysis.stopped) == 1 else "were"
        sentences.append(
            f"{len(analysis.stopped)} of {len(analysis.cells)} configurations {were} stopped early ({steps}). "
            "The report compares only the others, which were ahead at those steps."
        )
    return " ".join(sentences)


def _steps(analysis: Analysis) -> tuple[Step, ...]:
    """Return a step that runs missing trials, confirms the winner of a stopped search, or repeats failed trials.

    Diverged trials are repeated only together with failed ones.
    """
    results, counts = analysis.results, analysis.counts
    if waiting := _waiting(analysis):
        settles = "the results of the missing trials"
        return continue_sweep(results, "resume", settles=settles, trials=waiting, urgency=90)
    if analysis.stopped and counts.get("finished") and not results.confirmed:
        settles = "whether the winner holds up on fresh seeds"
        best = min(3, sum(bool(cell.values) and not cell.cell.baseline for cell in analysis.cells))
        cells = best + (analysis.baseline is not None)
        return continue_sweep(results, "confirm", settles=settles, trials=5 * cells, urgency=60)
    failed, diverged = counts.get("failed", 0), counts.get("diverged", 0)
    settles = "whether they fail again after you fix the cause (see the appendix)"
    if (fewer := smaller_micro_batch(results)) is not None:
        settles = f"whether they fit into memory with {fewer} images at a time; batches and results stay the same"
    repeated, urgency = failed + diverged if failed else 0, 15 if counts.get("finished") else 95
    change = retry_arguments(results)
    return continue_sweep(results, "resume", change, settles=settles, trials=repeated, urgency=urgency)


def _gradient_caching(results: Results) -> str:
    sizes = Counter(trial.micro_batch for trial in results.trials if trial.micro_batch)
    used = [f"{counted(trials, 'trial')} used {size} images at a time" for size, trials in sorted(sizes.items())]
    return "; ".join(used)


def _progress(analysis: Analysis) -> str:
    counts, results = analysis.counts, analysis.results
    cells = len(analysis.cells) + results.to_propose // max(len(analysis.seeds), 1)
    text = (
        f"{counts.get('finished', 0)} of {results.planned_trials} trials finished ({cells} cells x "
        f"{len(analysis.seeds)} seeds), {duration(analysis.seconds)} of training in all."
    )
    if stopped := counts.get("stopped"):
        text += f" The scheduler stopped {counted(stopped, 'trial')} early."
    lost = [f"{counts[status]} {status}" for status in ("diverged", "failed") if counts.get(status)]
    without_metric = sum(trial.status == "finished" for cell in analysis.cells for trial, _ in cell.failures)
    lost += [f"{without_metric} finished without the metric"] if without_metric else []
    if lost:
        text += f" {' and '.join(lost)}: listed below and drawn in the figures."
    if counts.get("failed"):
        text += " If their settings caused the failures, the remaining results of these cells are optimistic."
    if waiting := _waiting(analysis):
        missing = "1 trial has" if waiting == 1 else f"{waiting} trials have"
        text += f" The sweep is not complete: {missing} not finished, and the verdicts are provisional."
    return text


def _table_of_failures(failures: Sequence[tuple[TrialResult, str]]) -> Table:
    rows = [
        (t.cell.label, t.seed, text_cell(t.status, mark=t.status), reason, t.attempts,
         TableCell(t.key, links=((t.key, f"#trial-{t.key}"),)), t.run_id or "-")
        for t, reason in failures
    ]  # fmt: skip
    columns = ("cell", "seed", "status", "reason", "attempts", "trial", "MLflow run")
    return Table("failures", "Trials without a result, and why.", columns, rows, for_paper=False)


def _table_of_cells(analysis: Analysis) -> Table:
    level = analysis.looks.confidence
    caption = (
        f"Every cell: {analysis.metric.axis}, mean over seeds. Low and high end its comparison bar: cells whose bars do "
        f"not overlap differ ({level}, all pairs at once). Bars leave out the variation of all cells together between seeds"
    )
    empty = [] if any(cell.lost for cell in analysis.cells) else ["lost seeds"]
    empty += [] if any(len(cell.values) < len(cell.trials) for cell in analysis.cells) else ["planned"]
    if analysis.baseline is None:
        empty += ["difference", "diff. low", "diff. high", "against baseline"]
    else:
        caption += f". Beside it the paired difference to the baseline with simultaneous {level} intervals"
    columns = (
        "cell", "seeds", "planned", "mean", "low", "high", "difference", "diff. low", "diff. high",
        "against baseline", "lost seeds", "trials by seed",
    )  # fmt: skip
    rows = tuple(_row(analysis, cell) for cell in analysis.cells)
    return Table("cells", f"{caption}.", columns, rows, csv_only=("lost seeds",)).without(empty)


def _row(analysis: Analysis, cell: CellAnalysis) -> tuple[object, ...]:
    metric, against = analysis.metric, analysis.against(cell)
    verdict = text_cell("baseline" if cell.cell.baseline else "-")
    if cell.lost and not cell.values:
        word = "diverged" if cell.diverged else "failed"
        verdict = text_cell(word, mark=word)
    elif cell.stopped is not None:
        verdict = text_cell(f"stopped at {cell.stopped}")
    elif against is not None:
        verdict = text_cell(against.verdict, mark=against.verdict)
    difference = (against.difference, against.low, against.high) if against else (math.nan, math.nan, math.nan)
    links = tuple((f"{trial.seed}", f"#trial-{trial.key}") for trial in cell.trials)
    trials = TableCell(" ".join(trial.key for trial in cell.trials), None, links)
    return (
        cell.label, len(cell.values), len(cell.trials),
        *metric_cells(metric, cell.mean, *analysis.bar(cell)), *interval_cells(metric, *difference),
        verdict, cell.lost, trials,
    )  # fmt: skip


def _cell_data(analysis: Analysis, cell: CellAnalysis) -> dict[str, object]:
    low, high = analysis.bar(cell)
    return {
        "label": cell.label,
        "knobs": dict(cell.cell.knobs),
        "arm": cell.cell.arm or None,
        "baseline": cell.cell.baseline,
        "planned": len(cell.trials),
        "n": len(cell.values),
        "mean": cell.mean,
        "low": low,
        "high": high,
        "against_baseline": analysis.against(cell),
        "lost": cell.lost or None,
        "diverged": cell.diverged,
        "stopped": cell.stopped,
        "seconds": sum(cell.seconds) / len(cell.seconds) if cell.seconds else 0.0,
        "trials": [{"seed": trial.seed, "trial": trial.key} for trial in cell.trials],
    }


def _text(value: object) -> str:
    if isinstance(value, float | int | str | bool) or value is None:
        return value_text(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _provenance_text(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} ... ({len(text)} characters)"


@question(order=610)
def cost(analysis: Analysis) -> Section:
    """List the training time of each cell."""
    rows = []
    for cell in analysis.cells:
        n, total = len(cell.seconds), sum(cell.seconds)
        mean = TableCell(duration(total / n), total / n) if n else "-"
        rows.append((cell.label, n, mean, TableCell(duration(total), total)))
    columns = ("cell", "trials", "mean of a trial", "in all")
    table = Table("cost", "Training time over all attempts.", columns, rows, for_paper=False)
    return Section("cost", "What did it cost?", "Cost", (table,))
