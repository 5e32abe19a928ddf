"""Starts a training job with every recorder set right, and says why it failed if it does."""

from workbench.launch.plan import Plan, Request, plan
from workbench.launch.run import run

__all__ = ["Plan", "Request", "plan", "run"]
