"""Write the sentences about text logs."""
