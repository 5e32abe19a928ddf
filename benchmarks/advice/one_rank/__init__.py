"""Jobs in which one rank of several runs out of memory, and the advice that an expert would begin with."""
