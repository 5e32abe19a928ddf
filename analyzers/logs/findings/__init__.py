"""Write the findings and the verdict on text logs: titles, explanations and advice."""
