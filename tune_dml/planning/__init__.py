"""A request -> a checked plan of cells and trials."""
