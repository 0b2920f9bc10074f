"""The collectives on tensors of PyTorch, one per file, and their handles."""
