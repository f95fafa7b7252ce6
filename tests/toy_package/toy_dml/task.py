"""A task of one's own: retrieval, and one figure more."""

from trainables.tasks.retrieval import RetrievalTask


class ToyRetrieval(RetrievalTask):
    """Retrieval that also says how many pictures it was judged by."""

    name = "toy_retrieval"
    citation = "A. Author, A Toy, 2020"

    def validate(self) -> dict[str, float]:
        """Retrieval's figures and `val/pictures`."""
        return {**super().validate(), "val/pictures": float(len(self.split.validation))}
