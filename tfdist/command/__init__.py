"""The `tfdist` command: finds the subcommand and hands over. It does none of their work and imports none of them."""
