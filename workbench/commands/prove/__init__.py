"""Implement `workbench inspect RUN --prove`, for a run in which a memory allocation failed.

It applies the best advice against the failure to the job's settings, and runs a few steps with them.
"""
