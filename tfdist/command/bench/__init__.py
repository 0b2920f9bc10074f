"""`tfdist bench`: times collectives and training steps on the ranks it runs on."""
