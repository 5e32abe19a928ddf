"""Turn the columns of another trainer's log into steps: find the quantity of each column and the step of each row."""
