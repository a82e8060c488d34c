"""The phases of a sealed round, in order: of a sum, and of a combine."""

from __future__ import annotations

from secure_fl.protect.uploads.phases import ADVERTISE, DELIVER, OPEN, ROW, SCORE, UPLOAD

SUM = (ADVERTISE, UPLOAD, OPEN)
COMBINE = (ADVERTISE, UPLOAD, SCORE, ROW, OPEN, DELIVER)  # `score` asks nobody where no distances are opened
