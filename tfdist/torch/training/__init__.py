"""Training with PyTorch: the distributed optimizer, and states that all ranks take from one."""
