"""The options of tfdistrun."""
