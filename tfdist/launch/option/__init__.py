"""The options of tfdistrun. Nothing is started here."""
