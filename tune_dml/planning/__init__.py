"""Turn a request into a checked plan of cells and trials."""
