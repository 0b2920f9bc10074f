"""Gradients, optimizers and models of Keras on several ranks. Callbacks use it; it knows none of them."""
