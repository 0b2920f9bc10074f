"""What a running process reports: metrics, stack dumps, the timeline."""
