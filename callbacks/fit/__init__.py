"""What the callbacks change on a model, and what they compare between ranks during training. Contains no callback."""
