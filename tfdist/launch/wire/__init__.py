"""Messages between the launcher and its ranks' supervisors, and the sockets that carry them."""
