"""What a sweep leaves on disk, and how it is read back."""
