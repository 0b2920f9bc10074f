"""`tfdist.run`: a function called on the ranks of a new job, from a script or notebook. It decides nothing of a job."""
