"""Finds how collectives run fastest in a training: knobs, search, what is kept of it. Measures nothing itself."""
