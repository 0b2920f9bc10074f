"""The agent: offers its host to a launcher elsewhere, and starts the supervisors of the ranks there."""
