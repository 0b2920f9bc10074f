"""`tfdist bench allreduce`: which rows there are, how they are timed, and their picture."""
