"""Papers: citations, tables and printed numbers."""
