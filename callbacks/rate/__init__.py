"""The learning rate of a training: warm-up, schedule, and how a rate is set."""
