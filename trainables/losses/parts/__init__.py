"""Parts shared by several losses."""
