"""A loss of another package: one class, its knob declared once."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from trainables.losses.base import Loss, normalise


class ToyMarginLoss(Loss):
    """The mean over all pairs of [S + m - 1]_+ across classes and 1 - S within a class."""

    name = "toy_margin"
    citation = "A. Author, A Toy, 2020"
    section = "1"

    def __init__(self, *, margin: Annotated[float, Field(ge=0, le=2, description="margin m")] = 0.5):
        super().__init__()
        self.margin = margin

    def value(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over all pairs, including an embedding with itself."""
        directions = normalise(embeddings)
        similarity = directions @ directions.T
        same = labels[:, None] == labels
        return (1 - similarity).where(same, (similarity + self.margin - 1).relu()).mean()
