"""The `workbench` command: it launches training runs, and shows the reports of the analyzers in terminal and
browser.
"""
