"""The options of tfdistrun and the user's command. Nothing is started here."""
