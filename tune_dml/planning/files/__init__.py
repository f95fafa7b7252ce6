"""Files that a user writes: sweep files and programs."""
