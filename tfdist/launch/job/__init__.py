"""The state of a job as pure functions: what to do on each event, which ranks are alive, the final summary."""
