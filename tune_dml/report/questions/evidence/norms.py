"""How long are the embeddings? Compare the norms of two cells' embeddings."""

import math
from statistics import pstdev

from tune_dml.report.analysis import Analysis
from tune_dml.report.analysis.traces import Pair, ShownCell
from tune_dml.report.drawing.embeddings import draw_histograms, draw_norms_over_training
from tune_dml.report.questions import question
from tune_dml.report.section import Block, Figure, FigureView, Fold, Section, Text


@question(order=430, reads_traces=True)
def norms(analysis: Analysis) -> Section | None:
    """Show the norms of both cells at the end and over training, and the turns of directions; None without evidence."""
    pair = analysis.pair
    if not pair.sides:
        return None
    body: list[Block] = [*map(Text, pair.missing), Text(_sentence(pair)), Fold("Their distribution", (_figure(pair),))]
    return Section("norms", "How long are the embeddings?", "Norms", body)


def _figure(pair: Pair) -> Figure:
    sentence = _sentence(pair)
    shown = [(side.title, side.evidence.norms) for side in pair.sides]
    others = (_over_training(pair), _turns(pair))
    return Figure(
        "norms",
        lambda narrow: draw_histograms(shown, "norm of the raw embedding", narrow=narrow),
        sentence,
        "Share of the images per unit; each histogram has its own vertical axis. Over training: the same training "
        "images, recorded during the trial (Zhang et al., rebuttal, Figure 1; turns: supplement C.2).",
        "at the end",
        tuple(view for view in others if view is not None),
        sentence=sentence,
    )


def _sentence(pair: Pair) -> str:
    shown = f"Norms of the raw embeddings of {pair.sides[0].evidence.part}, seed {pair.seed}"
    return f"{shown}: {'; '.join(map(_in_words, pair.sides))}."


def _in_words(side: ShownCell) -> str:
    norms = side.evidence.norms
    spread = math.sqrt(norms.variance) / norms.mean if norms.mean else math.nan
    return (
        f"{side.title} has mean {norms.mean:.3g}, variance {norms.variance:.3g}, "
        f"standard deviation {100 * spread:.2g}% of the mean"
    )


def _over_training(pair: Pair) -> FigureView | None:
    watched = [(side.title, side.evidence.watched.snapshots) for side in pair.sides if side.evidence.watched]
    shown = [(title, snapshots) for title, snapshots in watched if len(snapshots) > 1]
    if not shown:
        return None
    ends = [(title, *(pstdev(snapshots[end].norms) for end in (0, -1))) for title, snapshots in shown]
    spreads = "; ".join(f"{title} from {first:.3g} to {last:.3g}" for title, first, last in ends)
    first, *_, last = shown[0][1]
    sentence = (
        f"Standard deviation of the norms of {len(first.norms)} training images, from step {first.step} to {last.step}, "
        f"seed {pair.seed}: {spreads}."
    )
    return FigureView(
        "over training", lambda narrow: draw_norms_over_training(shown, narrow=narrow), sentence, sentence
    )


def _turns(pair: Pair) -> FigureView | None:
    snapshots = [(side, side.evidence.watched.snapshots[-1]) for side in pair.sides if side.evidence.watched]
    shown = [(side.title, snapshot.turns) for side, snapshot in snapshots if snapshot.turns is not None]
    if not shown:
        return None
    named = "; ".join(f"{title} mean {turns.mean:.3g}, variance {turns.variance:.2g}" for title, turns in shown)
    where = f"between the last two snapshots, up to step {snapshots[0][1].step}, seed {pair.seed}"
    sentence, axis = f"Turns of the directions {where}: {named}.", "turn (chord, 0 to 2)"
    return FigureView(
        "turns of directions", lambda narrow: draw_histograms(shown, axis, narrow=narrow), sentence, sentence
    )
