"""critical."""
