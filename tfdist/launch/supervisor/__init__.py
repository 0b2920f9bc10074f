"""The supervisor of one rank, between mpirun and the user's command."""
