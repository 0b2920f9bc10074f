"""`tfdist bench scale`: the step of many GPUs predicted from the recorded step of one."""
