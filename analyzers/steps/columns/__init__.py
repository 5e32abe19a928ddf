"""Read the columns of a log that another trainer wrote, and find the quantities that the columns' names stand for.

Another trainer is a program that uses neither this project's recorders nor torchtitan, such as Lightning or mmengine.
"""
