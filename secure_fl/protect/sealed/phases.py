"""The phases of a sealed round, in order: of a sum, and of a combine."""

from __future__ import annotations

ADVERTISE, UPLOAD, SCORE, ROW, OPEN, DELIVER = "advertise", "upload", "score", "row", "open", "deliver"

SUM = (ADVERTISE, UPLOAD, OPEN)
COMBINE = (ADVERTISE, UPLOAD, SCORE, ROW, OPEN, DELIVER)  # `score` asks nobody where no distances are opened
