"""Keras gradients, optimizers and models on several ranks. Callbacks use it; it does not depend on them."""
