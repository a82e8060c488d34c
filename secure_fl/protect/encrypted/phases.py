"""The phases of an encrypted round, in order: of a sum, and of a combine."""

from __future__ import annotations

from secure_fl.protect.uploads.phases import ADVERTISE, DELIVER, OPEN, ROW, SCORE, UPLOAD

KEY, CHECK = "key", "check"

SUM = (ADVERTISE, KEY, UPLOAD, CHECK, OPEN)
COMBINE = (ADVERTISE, KEY, UPLOAD, SCORE, ROW, CHECK, DELIVER)  # `score` asks nobody where no distances are opened
