"""Servers that listen, what they answer, and the addresses they listen at."""
