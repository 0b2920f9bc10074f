"""The `tfdist` command: finds the subcommand and runs it."""
