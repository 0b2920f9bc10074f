"""This process among the ranks of its job: start and end, rank and size, process sets, tuning."""
