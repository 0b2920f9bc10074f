"""The `tfdist timeline` command: merges the recordings of all ranks, and summarizes where their time went."""
