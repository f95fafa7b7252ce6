"""The papers (`papers`), their grids (one frozen object a study) and `protocols`; spaces are found by being there.

Values copied from a paper carry the table they were printed in; values we chose are marked `ours`.
"""
