"""What every room may use: processes, files, streams, text. Independent of ranks, settings and TensorFlow."""
