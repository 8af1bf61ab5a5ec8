"""megatile: describe a machine, write a program for it once, then check, run, predict and execute it."""
