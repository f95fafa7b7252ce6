"""Where numbers come from: machine, packages, code and commands."""
