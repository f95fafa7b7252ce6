"""Find the logged metrics that correspond to published ones, and analyse the sweep by such a metric."""

from collections.abc import Iterator
from dataclasses import replace

from tune_dml.report.analysis import Analysis, analyse
from tune_dml.report.analysis.knob import KnobAnalysis

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
