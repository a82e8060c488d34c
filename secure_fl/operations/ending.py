"""What a process says that an error ends."""

from __future__ import annotations

import sys

from secure_fl.errors import SecureFLError


def ended_by(error: SecureFLError, who: str) -> int:
    """Say on standard error why `who` ends, and what to do about it. Returns the exit code."""
    sys.stderr.write(f"{who}: {error.message}\n" + (f"  → {error.hint}\n" if error.hint else ""))
    return error.exit_code
