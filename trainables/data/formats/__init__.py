"""How published files are opened, decoded and kept: archives, records, fonts, the cache."""
