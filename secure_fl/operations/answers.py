"""A coordinator's refusals in an operator's words.

Over the wire comes an error's code and nothing of its text. What the code means for the study in hand, and who has to
do what about it, is said here, where the study is known.
"""

from __future__ import annotations

from secure_fl.errors import (
    ModelTooLargeError,
    NotOwnerError,
    SettingsError,
    TaskNotAllowedError,
    TaskUnavailableError,
    UnknownNameError,
    rebuild,
)
from secure_fl.study.settings import Study


def about_submitting(error: SettingsError, study: Study) -> SettingsError:
    """Why the coordinator does not take a study that was found sound here. The error keeps its class."""
    message, advice = _submitting(error, study)
    told = rebuild(error.code, message, advice=advice)
    return told if isinstance(told, SettingsError) else error


def _submitting(error: SettingsError, study: Study) -> tuple[str, str]:
    task = study.task.name
    match error:
        case TaskNotAllowedError():
            return (
                f"the coordinator does not allow the task {task!r}",
                "whoever runs the coordinator installs the task's package there, adds it, word for word, to "
                "[coordinator] tasks in the coordinator's file, and restarts the coordinator",
            )
        case TaskUnavailableError():
            return (
                f"the coordinator cannot load the task {task!r}",
                "its package has to be installed at the coordinator as it is here; the log there says what fails",
            )
        case UnknownNameError():
            return (
                f"the coordinator does not know a name in this study: task {task!r}, strategy {study.strategy.name!r}, "
                f"protection {study.protection.kind!r}, or one of their settings",
                "install the task's package and the same release of secure-fl at the coordinator; "
                "`secure-fl doctor operator.toml` compares releases",
            )
        case ModelTooLargeError():
            return (
                "the study's model is larger than the coordinator allows",
                "whoever runs the coordinator may raise [limits] model_bytes in the coordinator's file",
            )
    return (
        f"the coordinator finds the study's settings wrong ({error.code}), which are sound here",
        "`secure-fl doctor operator.toml` compares releases; the coordinator's log says which setting it is",
    )


def about_stopping(study_id: str, owner: str) -> NotOwnerError:
    """Whose study it is that somebody else wanted to stop."""
    return NotOwnerError(
        f"study {study_id[:12]} was submitted by operator {owner!r}, and nobody else may stop it",
        advice=f"ask {owner!r} to stop it; a site that wants to leave takes its approval back",
    )
