"""The settings of arms: protocols, recipes, tuned knobs, and sizes that fit the data."""
