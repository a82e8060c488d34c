"""The phases of a circle's attempt, in order."""

from __future__ import annotations

ADVERTISE, COMMIT, UPLOAD = PHASES = ("advertise", "commit", "upload")
