"""`python -m tune_dml.cli`: the command line where no script is installed."""

from __future__ import annotations

from tune_dml.cli import main

if __name__ == "__main__":
    main()
