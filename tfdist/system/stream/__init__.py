"""Standard streams and lines of processes. Nothing here knows a job."""
