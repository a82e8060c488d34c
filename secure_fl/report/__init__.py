"""The study lead's report: one HTML page that needs no network, no script and no other file."""

from secure_fl.report.page import Step, render

__all__ = ["Step", "render"]
