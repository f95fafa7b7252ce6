"""Papers (`papers`), training protocols (`protocols`) and one study per file, found by discovery.

Values copied from a paper name their table; values we chose are marked `ours`.
"""
