"""Training code shared by the commands: data sets, loops, run folders."""
