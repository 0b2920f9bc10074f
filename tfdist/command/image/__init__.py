"""The `tfdist image` command: builds container images of tfdist. Importing it does not import the Docker SDK."""
