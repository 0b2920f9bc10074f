"""The course of a job as pure functions: what to do when, who lives, what is said at the end."""
