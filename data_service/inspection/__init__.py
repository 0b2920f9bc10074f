"""Inspects a data service from outside: its servers, their states and versions. Changes nothing."""
