"""Evaluate the test half for a trial that stored its head instead of evaluating it."""

from pathlib import Path

from trainables.config import TrialConfig
from trainables.context import TrialContext
from trainables.evidence.stored import hits_file
from trainables.tasks import Evaluation, build_learner
from trainables.training import prepare_process


def evaluate_test(config: TrialConfig, context: TrialContext, head: bytes, *, cache_dir: Path | None = None) -> None:
    """Evaluate the test half and seal the figures, equal to those that the trial itself would have sealed.

    `head` is the content of the trial's file `trainables.context.UNTESTED`. Raises ConfigError if the data are missing or
    have changed, or the head does not fit this configuration.
    """
    prepare_process(config, context)
    learner = build_learner(config, context, cache_dir=cache_dir)
    learner.load_head(head)
    evaluation: Evaluation = learner.test(Evaluation({}))
    if evaluation.hits is not None:
        context.store(hits_file("test"), evaluation.hits.data())
    context.seal(evaluation.figures)
