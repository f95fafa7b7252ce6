"""What each verb of the command line shows: one file a verb, each a view with `data()` for JSON and `text()` for people."""
