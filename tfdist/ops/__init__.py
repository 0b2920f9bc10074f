"""The collectives, one a file: argument checks, the TensorFlow op, its gradient. The algorithms are in csrc/core."""
