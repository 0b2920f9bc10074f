"""The tfdistrun command: starts, supervises and ends the ranks of a job. It never imports TensorFlow."""
