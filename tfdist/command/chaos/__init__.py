"""The `tfdist chaos` command: a job with faults in it, to see whether it survives them."""
