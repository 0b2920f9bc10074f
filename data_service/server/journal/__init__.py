"""The journal of a dispatcher, what it tells, and workers that are struck out of it."""
