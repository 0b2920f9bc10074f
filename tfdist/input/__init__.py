"""Each rank's shard of the data."""
