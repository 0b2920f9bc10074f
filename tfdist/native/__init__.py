"""The foundations of tfdist: the shared library, GPUs, tuning knobs, private names of Keras."""
