"""Campaigns: questions that several sweeps answer together."""
