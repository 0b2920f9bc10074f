"""The hosts that a cluster manager has allocated to this job."""
