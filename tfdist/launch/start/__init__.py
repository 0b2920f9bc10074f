"""Programs that start the ranks: mpirun, srun, jsrun. Words and variables only; nothing is started here."""
