"""Pages about several sweeps: a study of one space, a comparison of any sweeps, an atlas, and an audit."""
