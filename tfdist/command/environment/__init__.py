"""The `tfdist env` command: versions and settings for a bug report."""
