"""The launcher: starts a job, listens to its ranks, shows their output and terminates all of them."""
