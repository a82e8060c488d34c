"""A study handed to a coordinator in this process, as the command of its lead does it over the wire."""

from __future__ import annotations

import secrets

from coordinator.service import Coordinator
from coordinator.store import Owner
from coordinator.study_runner import StudyRunner
from secure_fl.study.settings import Study
from secure_fl.study.submission import start_of_study


async def submit(coordinator: Coordinator, study: Study, *, owner: Owner | None = None) -> StudyRunner:
    """With the first model that the study's seed makes."""
    start = start_of_study(study)
    content = coordinator.incoming / secrets.token_hex(8)
    content.parent.mkdir(parents=True, exist_ok=True)
    content.write_bytes(start.layout.flatten(start.blocks))
    return await coordinator.submit(study, start.first_model(), content, owner=owner)
