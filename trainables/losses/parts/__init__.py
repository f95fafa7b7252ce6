"""What several losses share."""
