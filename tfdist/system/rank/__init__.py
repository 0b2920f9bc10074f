"""Whether this process is a rank of a job, and which one, by the variables of whoever started it."""
