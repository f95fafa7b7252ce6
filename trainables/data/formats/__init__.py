"""Opening, decoding and caching of published files: archives, records, features."""
