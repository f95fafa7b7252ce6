"""Compare the conditions of published numbers with those of the sweep."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tune_dml.papers.published import PublishedCurve, PublishedPoint, PublishedRow
from tune_dml.planning.cells import Cell
from tune_dml.planning.checks.conditions import conditions_of, our_name
from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.analysis.knob import KnobAnalysis, same_value
from tune_dml.space import Value
from tune_dml.text import level_key, spelling_key

_ALIASES = {"verificationaccuracy": "verificationacc", "linearevaluationtop1": "top1", "linearevaluationtop5": "top5"}
_LABELS = {
    "loss.name": "loss",
    "regularizer.name": "regularizer",
    "regularizer.eta": "eta",
    "regularizer.rho": "rho",
    "regularizer.schedule": "schedule of eta",
    "batch.batch_size": "batch size B",
    "batch.instances_per_class": "number of pictures a class M",
    "batch.sampler": "sampler",
    "training.steps": "number of steps",
    "training.epochs": "number of epochs",
    "optim.name": "optimizer",
    "optim.lr": "learning rate",
    "optim.backbone_lr_multiplier": "learning rate of the backbone",
    "optim.loss_lr_multiplier": "learning rate of the proxies",
    "optim.lr_schedule": "learning-rate schedule",
    "optim.weight_decay": "weight decay",
    "model.backbone": "backbone",
    "model.embedding_dim": "embedding size",
    "model.head": "head",
    "model.pooling": "pooling",
    "model.weights": "initial weights",
}
"""Names of settings in reasons; other settings are named by their path, and come last."""
_SELECTIONS = {
    "validation": "chosen on validation classes",
    "class_disjoint": "chosen on validation classes",
    "shared_classes": "chosen on validation pictures",
    "paper_test_selection": "chosen on the test classes",
    "test": "chosen on the test classes",
}


def published_at(knob: KnobAnalysis, published: PublishedCurve) -> dict[str, float]:
    """Return the published numbers at the knob's values that have results, by label."""
    labels = [label for label, mean in knob.isolated.means.items() if math.isfinite(mean)]
    theirs = list(published.values().items())
    return {label: number for label in labels for x, number in theirs if same_value(knob.level(label), x)}


def data_difference(ours: str, published: str) -> list[str]:
    """Return in words how our data set differs from the published one; empty if they are the same."""
    return [] if our_name(ours) == our_name(published) else [f"other data set: {ours}, not {published}"]


def condition_differences(row: PublishedRow, settings: Mapping[str, Value]) -> list[str]:
    """Return in words the published conditions that a cell does not meet; empty if the row declares none."""
    conditions = conditions_of(row)
    differing = conditions.differing(settings) if conditions else {}
    return [
        _difference(path, _in_words(differing[path][0]), differing[path][1]) for path in sorted(differing, key=_rank)
    ]


def _difference(path: str, ours: str, theirs: Value) -> str:
    return f"other {_LABELS.get(path, path)}: {ours}, not {_in_words(theirs)}"


def _rank(path: str) -> int:
    return list(_LABELS).index(path) if path in _LABELS else len(_LABELS)


def selection_difference(split: str, published: str) -> list[str]:
    """Return in words how the selection of `data.split` differs from the published one; empty if equal or unknown."""
    if published == "unknown" or _SELECTIONS[split] == _SELECTIONS[published]:
        return []
    return [f"other selection: ours {_SELECTIONS[split]}, the paper's {_SELECTIONS[published]}"]


def reasons_against(
    analysis: Analysis, knob: KnobAnalysis, published: PublishedCurve, printed: Mapping[str, float]
) -> tuple[str, ...]:
    """Return the differences in conditions that forbid a comparison of levels."""
    theirs, settings = published.published, analysis.settings
    plan, selection = analysis.results.plan, str(settings.get("data.split", "class_disjoint"))
    size = settings.get("model.embedding_dim")
    printed_size = size if knob.path == "model.embedding_dim" else _embedding_dim(knob, published, printed)
    pairs: list[tuple[str, object, object]] = [
        ("backbone", settings.get("model.backbone"), theirs.backbone),
        ("embedding size", size, printed_size),
        ("metric", analysis.metric.name, theirs.metric),
    ]
    reasons = data_difference(plan.dataset, theirs.dataset)
    reasons += [
        f"other {what}: {ours}, not {number}"
        for what, ours, number in pairs
        if number is not None and _spelling_key(ours) != _spelling_key(number)
    ]
    reasons += _curve_differences(analysis, knob, published, printed)
    reasons += selection_difference(selection, theirs.selection)
    return tuple(reasons)


def _embedding_dim(knob: KnobAnalysis, published: PublishedCurve, printed: Mapping[str, float]) -> Value:
    """Return the embedding size of the published rows if they have only one, else that of their table, if stated."""
    rows = [point.row for point in _matched(knob, published, printed).values()]
    sizes = {row.hyperparameters.get("embedding_dim", published.published.embedding_dim) for row in rows}
    return sizes.pop() if len(sizes) == 1 else published.published.embedding_dim


def _curve_differences(
    analysis: Analysis, knob: KnobAnalysis, published: PublishedCurve, printed: Mapping[str, float]
) -> list[str]:
    """Return in words the published conditions, except the knob, that some cell of the curve does not meet."""
    labels_of: dict[tuple[str, str], list[str]] = {}  # (path, difference) -> labels of the knob's values
    matched = _matched(knob, published, printed)
    for label, point in matched.items():
        conditions = conditions_of(point.row)
        if conditions is None:
            continue
        differing: dict[str, tuple[list[Value], Value]] = {}
        for cell in _cells_at(analysis, knob, label):
            for path, (ours, theirs) in conditions.differing(cell.settings).items():
                differing.setdefault(path, ([], theirs))[0].append(ours)
        for path, (values, theirs) in differing.items():
            if path not in {knob.path, "model.backbone", "model.embedding_dim"}:
                difference = _difference(path, ", ".join(dict.fromkeys(map(_in_words, values))), theirs)
                labels_of.setdefault((path, difference), []).append(label)
    return [
        difference if len(labels) == len(matched) else f"{difference} (at {', '.join(labels)})"
        for (_, difference), labels in sorted(labels_of.items(), key=lambda item: _rank(item[0][0]))
    ]


def _matched(knob: KnobAnalysis, published: PublishedCurve, printed: Mapping[str, float]) -> dict[str, PublishedPoint]:
    return {label: point for label in printed for point in published.points if same_value(knob.level(label), point.x)}


def _cells_at(analysis: Analysis, knob: KnobAnalysis, label: str) -> list[Cell]:
    cells = [cell.cell for cell in analysis.cells if cell.cell.arm == knob.arm]
    key = level_key(knob.level(label))
    return [cell for cell in cells if knob.path in cell.knobs and level_key(cell.knobs[knob.path]) == key]


def unknown_conditions(
    analysis: Analysis, knob: KnobAnalysis, published: PublishedCurve, printed: Mapping[str, float]
) -> tuple[str, ...]:
    """Return in words the conditions that neither paper nor code states, with the sweep's values."""
    conditions_in_words: dict[str, None] = {}
    for label, point in _matched(knob, published, printed).items():
        conditions = conditions_of(point.row)
        if conditions is None:
            return ("how its method was trained",)
        for path in conditions.unprinted:
            values = dict.fromkeys(_in_words(cell.settings.get(path)) for cell in _cells_at(analysis, knob, label))
            conditions_in_words[f"{_LABELS.get(path, path)} (ours {', '.join(values)})"] = None
    return tuple(conditions_in_words)


def _in_words(value: object) -> str:
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _spelling_key(name: object) -> str:
    """Return a name in lower case without punctuation, in its usual spelling."""
    return _ALIASES.get(spelling_key(name), spelling_key(name))


def summarize_reasons(reasons: Sequence[str]) -> str:
    """Summarize reasons, e.g. `other data set, other backbone and 18 more`."""
    named = [reason.partition(":")[0] for reason in reasons]
    more = f" and {len(named) - 5} more" if len(named) > 6 else ""
    return ", ".join(named[:5] if more else named) + more or "no value was tried in both"


_METRICS = {
    "NMI": "val/nmi",
    "F1": "val/f1",
    "MAP@R": "val/map_at_r",
    "top1": "val/linear_top1",
    "top5": "val/linear_top5",
    "norm_mean": "train/norm_mean",
    "norm_var": "train/norm_variance",
    "final_norm_mean": "train/norm_mean",
    "final_norm_var": "train/norm_variance",
    "train_norm_var": "train/norm_variance",
}
_RANKED = {"R@": "val/recall_at_", "nDCG@": "val/ndcg_at_"}


def our_metric(printed: str) -> str | None:
    """Return the logged name of a published metric; None if it is not logged."""
    for start, key in _RANKED.items():
        if printed.startswith(start):
            return f"{key}{printed.removeprefix(start)}"
    return _METRICS.get(printed)


def by_published_metrics(analysis: Analysis, knob: KnobAnalysis) -> Iterator[tuple[str, Analysis, KnobAnalysis]]:
    """Yield (name, analysis, knob analysis) for each further published validation metric that was logged.

    A race yields no metric: it stopped cells by the sweep's own metric, so intervals of other metrics would be wrong.
    """
    if analysis.race is not None:
        return
    logged = {key for trial in analysis.results.trials for key in trial.metrics} - {analysis.results.plan.metric}
    for name in dict.fromkeys(name for curve in knob.published for name in curve.others):
        key = our_metric(name)
        if key in logged and key.startswith("val/"):
            published = [replace(curve.published, metric=name) for curve in knob.published if name in curve.others]
            plan = analysis.results.plan
            plan = replace(plan, space=replace(plan.space, metric=key, published=tuple(published)))
            by_metric = analyse(replace(analysis.results, plan=plan), analysis.margin, analysis.paper_sd)
            yield name, by_metric, next(item for item in by_metric.knobs if item.key == knob.key)
