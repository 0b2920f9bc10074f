"""The `tfdist chaos` command: injects faults into a job, to test its fault tolerance."""
