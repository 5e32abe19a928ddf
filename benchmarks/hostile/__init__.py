"""Small artefacts that are cheap to read and expensive to compare, and what the program makes of them."""
