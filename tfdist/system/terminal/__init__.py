"""Terminal input and output: streams, lines, tables, command lines."""
