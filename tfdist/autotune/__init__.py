"""Finds the fastest settings of the collectives for a training: knobs, search, records. Measures nothing itself."""
