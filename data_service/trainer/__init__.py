"""The trainer's side: reading from a service with deadlines and counts. `source` has the data sources."""
