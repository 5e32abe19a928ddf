"""Public threads in which somebody asked why a training run broke, with the truth and the cure."""
