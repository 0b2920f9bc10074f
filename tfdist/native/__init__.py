"""The foundations of tfdist: the shared libraries, GPUs, tuning knobs, private names of Keras."""
