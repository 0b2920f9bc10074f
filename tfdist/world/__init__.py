"""This process as a rank of its job: startup and shutdown, rank and size, process sets, tuning."""
