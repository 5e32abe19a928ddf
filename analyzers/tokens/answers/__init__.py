"""Find, from the numbers about each row of a data set, which rows have a mask mistake; sum these numbers up."""
