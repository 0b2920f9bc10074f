"""The shared library and what is read from it: loading, GPUs, the knobs of the engine. It runs no collective."""
