"""Answer from the facts about rows which of them have a mask mistake, and how numbers are distributed."""
