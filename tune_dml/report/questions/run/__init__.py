"""Questions about the run: settings, failures, cost, and every number."""
