"""tune_dml: from a paper's knob to a statistically honest sensitivity report."""

__version__ = "0.1.0"
