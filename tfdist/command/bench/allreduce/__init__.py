"""`tfdist bench allreduce`: which cases it measures, how it times them, and the plot."""
