"""What every room may use: processes, files, streams, text. It knows no rank, no setting and no TensorFlow."""
