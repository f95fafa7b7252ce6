"""What a trial leaves to look at."""
