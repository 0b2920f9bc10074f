"""An HTTP server, the Prometheus format, and the addresses of this machine."""
