"""Implement `workbench inspect RUN --prove`: run a broken job again, to test advice or to find the cause.

After a failed allocation, the best advice is applied to the job's settings, and a few steps are run. After a NaN or a
spike of the loss, the job is run again from the last checkpoint before the event, with recorders on.
"""
