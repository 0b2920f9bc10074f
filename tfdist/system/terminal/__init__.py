"""What a person sees and types: streams, lines, tables, command lines. Nothing here knows a job."""
