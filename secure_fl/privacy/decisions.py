"""What the ledger says when a site agrees to a study, or would not do what it was asked."""

from __future__ import annotations

import getpass
from typing import Any


def approval(
    *, study_id: str, name: str, by: str, dataset: str, epsilon: float | None, code: str | None
) -> dict[str, Any]:
    """The facts of an entry "approved".

    `study_id` is the hash of the study's text, `by` who agreed, `epsilon` what the study plans to spend on the data set
    (None: nothing bounds it, without differential privacy), `code` the digest of the task's code as installed here.
    """
    return {"study": study_id, "name": name, "by": by, "dataset": dataset, "epsilon": epsilon, "code": code}


def refusal(*, study_id: str, round: int, reason: str) -> dict[str, Any]:  # noqa: A002
    """The facts of an entry "refused". `reason` is an error's code, never its text."""
    return {"study": study_id, "round": round, "reason": reason}


def this_user() -> str:
    """Under which name somebody works on this machine; "unknown" where the system has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
