"""The two servers of the data service in this process, with their ports, control, counters and work dir."""
