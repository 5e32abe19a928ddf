"""The pages of the dashboard, one module each.

The function `layout` of each module builds the page from the run and the query of the address.
"""
