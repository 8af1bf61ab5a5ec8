"""Models on machines: from a config file to the time of a step, of serving and of training."""
