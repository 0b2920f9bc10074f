"""The `tfdist image` command: container images of tfdist, by one command. Importing it imports nothing of Docker."""
