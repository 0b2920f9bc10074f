"""Writes training files completely or not at all, in a background thread, and reports failures."""
