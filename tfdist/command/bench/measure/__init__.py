"""What all benchmarks measure with: clocks in turn, statistics, tables, files. No benchmark is here."""
