"""Record the memory of a rank: live blocks, their categories, and what allocated them."""
