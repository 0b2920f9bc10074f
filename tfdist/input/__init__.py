"""Each rank's part of the data."""
