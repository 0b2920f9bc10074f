"""The journal of a dispatcher, what can be read from it, and the removal of workers from it."""
