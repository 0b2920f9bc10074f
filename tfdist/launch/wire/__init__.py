"""Messages between the launcher and the supervisors of its ranks, and the sockets they travel on."""
