"""Say what each block is used for: as the recorder wrote it, else by rules on stacks, phases and lifetimes."""
