"""The tfdistrun command: starts, supervises and terminates the ranks of a job. It never imports TensorFlow."""
