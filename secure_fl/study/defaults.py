"""What a study gets where it does not say: from its task, and from its strategy.

The order, from weakest to strongest: built-in values, the task's, the strategy's, the task's for that strategy, the
study file, `--set` and the other flags. Whatever a person wrote always wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from secure_fl import protect, strategies
from secure_fl.errors import SettingsError
from secure_fl.settings import Settings
from secure_fl.tasks.public import FOLDER, public_path

S = TypeVar("S", bound=Settings)  # a study: this module fills in what `Study.completed` then works with

_WITH_SETTINGS = ("task", "strategy", "protection")  # sections with a table of what belongs to the part they name


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """One value that nobody wrote, and whose choice it is."""

    key: str  # as for `--set`: section.key
    value: Any
    by: str  # in words


def suitable(values: Any) -> Any:
    """A study's table with a task and a protection that serve its strategy, where it names none.

    Done when a study is read: who decides whether a task may be imported has to know which one it is.
    """
    if not isinstance(values, Mapping):
        return values
    strategy, task, protection = (values.get(section, {}) for section in ("strategy", "task", "protection"))
    if not all(isinstance(section, Mapping) for section in (strategy, task, protection)):
        return values
    name = str(strategy.get("name", ""))
    filled = dict(values)
    if "name" not in task and (wanted := strategies.defaults(name).get("task.name")):
        filled["task"] = {**task, "name": wanted}
    if "strategy" in values and "kind" not in protection:
        filled["protection"] = {**protection, "kind": protect.suitable(strategies.asks(name))}
    return filled


def found(study: Settings) -> tuple[Default, ...]:
    """The defaults of task and strategy that apply: the study does not say itself. Imports the task."""
    from secure_fl import tasks

    values, said = study.model_dump(), study.model_dump(exclude_unset=True)
    name, strategy = values["task"]["name"], values["strategy"]["name"]
    task = tasks.resolve(name)
    layers = (
        (f"as suits task {name}", task.defaults),
        (f"as suits strategy {strategy}", strategies.defaults(strategy)),
        (f"as suits task {name} with strategy {strategy}", task.defaults_with.get(strategy, {})),
    )
    own = {"task": task.Settings, "strategy": strategies.settings(strategy)}
    applying: dict[str, Default] = {}
    # Where a study lead keeps files is no business of sites.
    if not values["study"]["roster"] and not _is_said(said, "simulation.path") and (path := public_path(task)):
        applying["simulation.path"] = Default(key="simulation.path", value=path, by=f"found in the folder {FOLDER}")
    for by, layer in layers:
        for key, value in layer.items():
            _require_key(study, key, own, by)
            if not _is_said(said, key) and _fits(values, key):
                applying[key] = Default(key=key, value=value, by=by)
    return tuple(applying.values())


def filled(study: S) -> S:
    """The study with those defaults in it; itself, where there are none. Raises as `Study.parse` does."""
    applying = found(study)
    if not applying:
        return study
    table: dict[str, Any] = study.model_dump(exclude_unset=True)
    for default in applying:
        section, _, key = default.key.partition(".")
        into = table.setdefault(section, {})
        if section in _WITH_SETTINGS and key not in type(getattr(study, section)).model_fields:
            into = into.setdefault("settings", {})
        into[key] = default.value
    return type(study).parse(table)


def chosen_protection(table: Mapping[str, Any], *, strategy: str, kind: str) -> str | None:
    """A sentence about the protection `kind` of a study whose table names none; None for the usual one."""
    named = table.get("protection", {})
    usual = protect.suitable(strategies.asks(""))
    if not isinstance(named, Mapping) or "kind" in named or kind == usual:
        return None
    return (
        f"protection {kind!r} was chosen: strategy {strategy!r} makes a mixture for each site, which the usual "
        f"{usual!r} cannot do"
    )


def _require_key(study: Settings, key: str, own: Mapping[str, type[Settings]], by: str) -> None:
    """Raise `SettingsError` for a default that no study could have: whoever wrote the task has to hear of it.

    `own` are, by section, the settings of the task and of the strategy.
    """
    section, _, name = key.partition(".")
    if section in type(study).model_fields:
        keys = {*type(getattr(study, section)).model_fields, *own.get(section, Settings).model_fields} - {"settings"}
        if name in keys:
            return
    raise SettingsError(
        f"{key!r}, {by}, is no key of a study", advice="correct `defaults` or `defaults_with` of the task"
    )


def _is_said(table: Mapping[str, Any], key: str) -> bool:
    """Whether a study's table, as far as it was written, has a key."""
    section, _, name = key.partition(".")
    written = table.get(section, {})
    return name in written or name in written.get("settings", {})


def _fits(values: Mapping[str, Any], key: str) -> bool:
    """Whether a default can stand beside what the study does say."""
    if key == "rounds.mode":
        # Circles that do not wait for each other are opened whole, and one at a time.
        return not values["protection"]["recovery"] and values["protection"]["robust"] == "none"
    return True
