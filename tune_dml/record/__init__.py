"""Write and read the files of a sweep."""
