"""Read the columns of a log that another trainer wrote, and find the quantity that each column's name stands for.

Another trainer is a program that uses neither this project's recorders nor torchtitan, such as Lightning or mmengine.
"""
