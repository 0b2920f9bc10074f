"""Datasets from common file formats, for use with or without the service."""
