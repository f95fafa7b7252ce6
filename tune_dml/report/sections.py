"""The tables of each section, from the answers."""

from __future__ import annotations

import math

from tune_dml.report.analysis import Analysis, CellRow, KnobAnswer
from tune_dml.report.naming import metric_name
from tune_dml.report.tables import Entry, Table, entry, number, signed, words
from tune_dml.text import duration, value_text


def slug(path: str) -> str:
    """A knob's path as an anchor and file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in path)


def all_tables(found: Analysis) -> dict[str, Table]:
    """Every table of the report by name, in the order of the report."""
    tables = [cells(found), failures(found)]
    for answer in found.knobs:
        tables += knob_tables(answer).values()
    tables += [against_baseline(found), cost(found), opened(found), trials(found)]
    return {table.name: table for table in tables if table is not None and table.rows}


def knob_tables(answer: KnobAnswer) -> dict[str, Table]:
    """The tables about one knob: differences, chances, agreement (one per curve), finals; empty ones left out."""
    tables = {
        "differences": differences(answer),
        "chances": chances(answer),
        "finals": finals(answer),
        **{f"agreement-{index}": agreement(answer, index) for index in range(len(answer.comparisons))},
    }
    return {name: table for name, table in tables.items() if table is not None and table.rows}


def _trial_links(row: CellRow) -> Entry:
    links = tuple((f"{seed}", f"trial-{key}") for seed, key in row.trials)
    return Entry(" ".join(key for _, key in row.trials), None, links)


def _against(row: CellRow) -> Entry:
    if row.left_out:
        return words("left out", mark="failed")
    if row.against is not None:
        return words(row.against.verdict, mark=row.against.verdict)
    return words("baseline" if row.baseline else "-")


def cells(found: Analysis) -> Table:
    """Mean and interval of every cell, and its difference to the baseline."""
    metric = found.measured.metric
    rows = []
    for row in found.cells:
        against = row.against
        rows.append(
            (
                words(row.label, anchor=f"cell-{slug(row.label)}"),
                entry(row.interval.n),
                entry(row.planned),
                number(metric, row.interval.mean),
                number(metric, row.interval.low),
                number(metric, row.interval.high),
                number(metric, row.interval.sd),
                signed(metric, against.difference if against else math.nan),
                signed(metric, against.low if against else math.nan),
                signed(metric, against.high if against else math.nan),
                _against(row),
                words(row.left_out),
                _trial_links(row),
            )
        )  # fmt: skip
    caption = f"Every cell: {metric.axis}, mean over seeds with its own 95% interval (Student's t)"
    if found.measured.baseline is not None:
        caption += ", and the paired difference to the baseline with simultaneous 95% intervals (Dunnett)"
    columns = (
        "cell", "seeds", "planned", "mean", "low", "high", "sd", "difference", "diff. low", "diff. high",
        "against baseline", "left out because", "trials by seed",
    )  # fmt: skip
    table = Table("cells", f"{caption}.", columns, tuple(rows))
    empty = [] if any(row.left_out for row in found.cells) else ["left out because"]
    empty += [] if any(row.interval.n < row.planned for row in found.cells) else ["planned"]
    if found.measured.baseline is None:
        empty += ["difference", "diff. low", "diff. high", "against baseline"]
    return table.without(empty)


def failures(found: Analysis) -> Table | None:
    """The trials without a result."""
    rows = tuple(
        (words(f.label), entry(f.seed), words(f.status, mark=f.status), words(f.reason), entry(f.attempts),
         Entry(f.key, None, ((f.key, f"trial-{f.key}"),)), words(f.run_id or "-"))
        for f in found.conduct.failures
    )  # fmt: skip
    columns = ("cell", "seed", "status", "reason", "attempts", "trial", "MLflow run")
    return Table("failures", "Trials without a result, and why.", columns, rows)


def differences(answer: KnobAnswer) -> Table:
    """Pairwise differences with their simultaneous intervals."""
    curve = answer.curve
    metric, verdict = curve.metric, curve.sensitivity
    rows = tuple(
        (words(d.first), words(d.second), signed(metric, d.estimate), signed(metric, d.low), signed(metric, d.high),
         words(_size(d.at_least, d.at_most, verdict.margin)))
        for d in verdict.differences
    )  # fmt: skip
    level = f"{100 * verdict.confidence:.3g}%"
    caption = (
        f"Differences of {metric.label} between the values, first minus second, with simultaneous {level} intervals. "
        f"{verdict.algorithm}; {verdict.design}; noise of one trial {metric.number(verdict.sd)} "
        f"({verdict.df} degrees of freedom)."
    )
    name = f"differences-{slug(curve.knob.path)}"
    return Table(name, caption, ("first", "second", "difference", "low", "high", "against the margin"), rows)


def _size(at_least: float, at_most: float, margin: float) -> str:
    if at_least > margin:
        return "larger"
    return "smaller" if at_most < margin else "open"


def chances(answer: KnobAnswer) -> Table | None:
    """How likely each value is the best."""
    place = answer.location
    if place is None:
        return None
    rows = tuple((words(label), Entry(f"{share:.3f}", share)) for label, share in place.optimum.probabilities)
    caption = f"Probability that each tested value is the best. {place.optimum.algorithm}."
    return Table(f"chances-{slug(place.knob)}", caption, ("value", "probability"), rows)


def agreement(answer: KnobAnswer, index: int) -> Table:
    """Ours and the paper's, value by value."""
    found, metric = answer.comparisons[index], answer.curve.metric
    rows = tuple(
        (
            words(f"{point.value:g}" if isinstance(point.value, float) else point.value),
            number(metric, point.ours),
            number(metric, point.published),
            signed(metric, point.gap),
            signed(metric, point.low),
            signed(metric, point.high),
        )
        for point in found.agreement.points
    )
    comparable = not found.agreement.reasons
    what = found.agreement.algorithm if comparable else "No intervals, since the level is not comparable"
    caption = f"Our means and the numbers of {found.published.source}. {what}."
    name = f"agreement-{slug(found.knob)}-{index + 1}"
    table = Table(name, caption, ("value", "ours", "published", "gap", "low", "high"), rows)
    return table if comparable else table.without(["low", "high"])


def finals(answer: KnobAnswer) -> Table | None:
    """Mechanism figures at the last evaluation."""
    if answer.mechanism is None:
        return None
    rows = tuple(
        (words(f.label), words(f.metric.label), entry(f.n), number(f.metric, f.mean), number(f.metric, f.sd),
         number(f.metric, f.published))
        for f in answer.mechanism.finals
    )  # fmt: skip
    source = answer.mechanism.source
    caption = "Mechanism figures at the last evaluation: mean and standard deviation over seeds" + (
        f", beside those of {source}." if source else "."
    )
    name = f"mechanism-{slug(answer.curve.knob.path)}"
    table = Table(name, caption, ("value", "figure", "seeds", "mean", "sd", "published"), rows)
    return table if source else table.without(["published"])


def against_baseline(found: Analysis) -> Table | None:
    """Each cell against the baseline."""
    if found.baseline is None:
        return None
    view = found.baseline
    rows = tuple(
        (words(row.label), entry(row.n), signed(view.metric, row.difference), signed(view.metric, row.low),
         signed(view.metric, row.high), words(row.verdict, mark=row.verdict))
        for row in view.comparison.rows
    )  # fmt: skip
    level = f"{100 * view.comparison.confidence:.3g}%"
    caption = f"Cell minus {view.comparison.baseline}, simultaneous {level} intervals. {view.comparison.algorithm}."
    return Table("baseline", caption, ("cell", "seeds", "difference", "low", "high", "verdict"), rows)


def cost(found: Analysis) -> Table:
    """Training time of each cell."""
    rows = tuple(
        (words(label), entry(n), Entry(duration(mean) if n else "-", mean if n else None), Entry(duration(total), total))
        for label, n, mean, total in found.conduct.cost
    )  # fmt: skip
    return Table("cost", "Training time, all attempts together.", ("cell", "trials", "mean of a trial", "in all"), rows)


def opened(found: Analysis) -> Table | None:
    """The test metrics, once opened."""
    if found.opened is None:
        return None
    metric, validation = found.opened.metric, found.measured.metric
    rows = tuple(
        (words(row.label), entry(row.interval.n), number(validation, row.validation), number(metric, row.interval.mean),
         number(metric, row.interval.low), number(metric, row.interval.high))
        for row in found.opened.rows
    )  # fmt: skip
    columns = ("cell", "seeds", validation.axis, metric.axis, "low", "high")
    return Table(
        "opened-test",
        f"Opened: {metric.axis}, mean over seeds with its 95% interval (Student's t).",
        columns,
        rows,
    )


def trials(found: Analysis) -> Table:
    """Every trial with its identity, its runs and its metrics."""
    results = found.measured.results
    order = {found.measured.metric.key: 0}
    keys = sorted(
        {name for trial in results.trials for name in trial.metrics},
        key=lambda name: (order.get(name, 1), not name.startswith("val/"), name),
    )
    rows = []
    for trial in results.trials:
        rows.append(
            (
                words(trial.cell.label, anchor=f"trial-{trial.key}"),
                entry(trial.seed),
                words(trial.status, mark=trial.status),
                words(trial.key),
                words(trial.run_id or "-"),
                entry(trial.step),
                entry(trial.attempts),
                Entry(duration(trial.seconds), trial.seconds),
                words(trial.reason),
                *(number(name, trial.metrics.get(name, math.nan)) for name in keys),
            )
        )
    run = f" The sweep's own MLflow run is {results.parent_run_id}." if results.parent_run_id else ""
    caption = f"Every trial: the source of every number above.{run}"
    columns = (
        "cell", "seed", "status", "trial", "MLflow run", "step", "attempts", "seconds", "reason",
        *(metric_name(name).axis for name in keys),
    )  # fmt: skip
    return Table("trials", caption, columns, tuple(rows))


def describe(answer: KnobAnswer) -> str:
    """The curve in words, for readers who do not see it."""
    curve = answer.curve
    points = [
        f"{value_text(p.value)}: {curve.metric.number(p.mean)}"
        if math.isfinite(p.mean)
        else f"{value_text(p.value)}: no result"
        for p in curve.points
    ]
    text = f"Curve of {curve.metric.label} over {curve.knob.label}. Means: {'; '.join(points)}."
    if curve.baseline is not None and math.isfinite(curve.baseline.mean):
        text += f" Baseline {curve.baseline.label}: {curve.metric.number(curve.baseline.mean)}."
    for published in curve.published:
        values = "; ".join(
            f"{p.x:g}: {p.y:g}" if isinstance(p.x, float) else f"{p.x}: {p.y:g}" for p in published.points
        )
        text += f" Beside it the published curve of {published.source}: {values}."
    return text
