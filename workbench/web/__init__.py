"""The dashboard: web pages for a report, served on this machine."""
