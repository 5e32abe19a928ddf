"""Record the memory of a rank: its live blocks, their categories, and the call stacks that allocated them."""
