"""Write a trial's evidence for the report: sheets of pictures, feature maps, norms, directions and embeddings."""
