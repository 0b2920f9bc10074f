"""Caches and snapshots of datasets in memory and on disk, and the space they take. Works with or without the
service.
"""
