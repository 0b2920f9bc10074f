"""What a process of a job tells of itself while it runs, and what is read from it afterwards."""
