"""The phases of a masked round, in order."""

from __future__ import annotations

ADVERTISE, SHARE, UPLOAD, CONSISTENCY, UNMASK = PHASES = ("advertise", "share", "upload", "consistency", "unmask")
