"""Hosts, their slots and cores, and the networks between them."""
