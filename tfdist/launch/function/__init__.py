"""`tfdist.run`: calls a function on the ranks of a new job, from a script or notebook."""
