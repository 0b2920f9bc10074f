"""The `tfdist timeline` command: the recordings of all ranks as one file, and where their time went."""
