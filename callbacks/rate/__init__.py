"""The learning rate during training: warm-up, schedule, and how a rate is set."""
