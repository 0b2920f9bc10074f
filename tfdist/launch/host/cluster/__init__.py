"""The hosts that a cluster manager has given to this job. Nothing is asked for here, and nothing started."""
