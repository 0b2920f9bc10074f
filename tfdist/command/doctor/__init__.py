"""The `tfdist doctor` command: what of tfdist and of this machine works, what does not, and what to do about it."""
