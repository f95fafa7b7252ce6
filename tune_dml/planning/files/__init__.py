"""Files that a user writes: sweep files, programs, a folder of pictures."""
