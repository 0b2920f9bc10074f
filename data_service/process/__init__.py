"""Processes that run servers: one per server, its supervisor, and those that request it. `server` has the servers."""
