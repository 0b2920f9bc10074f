"""Programs that start the ranks: mpirun, srun, jsrun. Builds their arguments and variables."""
