"""`tfdist bench`: times collectives and training steps on the ranks it is started on. It starts no ranks itself."""
