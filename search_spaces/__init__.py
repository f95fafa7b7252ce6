"""The papers' grids: one frozen declarative object per study, found by being there.

Values copied from a paper carry the table they were printed in; values we chose are marked `ours`.
"""
