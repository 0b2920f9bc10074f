"""Files of a training: written whole or not at all, in a thread, and told of when they cannot be."""
