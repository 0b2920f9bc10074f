"""What all benchmarks share: timing in turn, statistics, tables, files."""
