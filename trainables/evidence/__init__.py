"""Evidence of a trial for the report: sheets of pictures, feature maps, norms, directions and stored embeddings."""
