"""What a rank and its supervisor share: the messages between them, and the commit files."""
