"""What tfdist stands on: the shared library, GPUs, knobs of the engine, Keras. It runs no collective."""
