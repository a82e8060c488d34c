"""Studies as people write them in Python: `Study.of(task="digits", rounds=5, protection="masked")`.

A study has sections, as its file has. The words below stand for one key each; any other key is written with its
section, as after `secure-fl run --set`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from secure_fl.errors import SettingsError
from secure_fl.hints import shown_hints
from secure_fl.settings import Settings, explain, nearest

if TYPE_CHECKING:
    from secure_fl.strategies.base import Strategy
    from secure_fl.tasks.base import Task

WORDS: Mapping[str, str] = {
    "name": "study.name",
    "rounds": "study.rounds",
    "seed": "study.seed",
    "task": "task.name",
    "strategy": "strategy.name",
    "protection": "protection.kind",
    "privacy": "privacy.mode",
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
    "metrics": "metrics.share",
    "nodes": "simulation.nodes",
    "partition": "simulation.partition",
}


class Shorthand(Settings):
    """What a study can be made from besides a file."""

    @classmethod
    @shown_hints()
    def of(cls, settings: Mapping[str, Any] | None = None, /, **words: Any) -> Self:
        """A study from words, from sections, or from both; later ones win.

            Study.of(task="digits", strategy="fedavg", rounds=5, protection="masked")
            Study.of({"strategy.epochs": 2, "simulation": {"alpha": 0.3}}, nodes=5, partition="dirichlet")

        `task` may be a `Task` class or object and `strategy` a `Strategy` class that only this process has, as in a
        notebook. Raises `SettingsError`, with the nearest word for one that does not exist.
        """
        table: dict[str, Any] = {}
        apply(table, settings or {})
        apply(table, words)
        _require_task_settings(table.get("task", {}))
        return cls.parse(table)

    @shown_hints()
    def changed(self, settings: Mapping[str, Any] | None = None, /, **words: Any) -> Self:
        """This study with some keys changed, which makes it another study; the words are those of `of`."""
        table = _unwrapped(self.model_dump(exclude_unset=True))
        wanted: dict[str, Any] = {}
        apply(wanted, settings or {})
        apply(wanted, words)
        for section, key in (("task", "name"), ("strategy", "name"), ("protection", "kind")):
            asked, before = wanted.get(section, {}).get(key), table.get(section, {}).get(key)
            if asked is not None and asked != before:
                _forget(table, section, asked, own=getattr(self, section).settings)
                if section == "strategy" and not wanted.get("protection"):
                    _forget_suitable_protection(table, before or "fedavg")
                if section == "task":
                    table.get("metrics", {}).pop("of", None)
        if table.get("study", {}).get("start", "seed") == "seed":
            table.get("study", {}).pop("initial", None)  # it follows from the rest; `completed` writes it anew
        apply(table, {f"{section}.{key}": value for section, keys in wanted.items() for key, value in keys.items()})
        return type(self).parse(table)

    @model_validator(mode="before")
    @classmethod
    def _sections(cls, values: Any) -> Any:
        """`Study(rounds=5)` is a natural mistake, since `rounds` is also a section."""
        for word, key in WORDS.items() if isinstance(values, Mapping) else ():
            given, (section, _, name) = values.get(word), key.partition(".")
            if given is None or isinstance(given, Mapping | Settings):
                continue
            said = getattr(given, "__qualname__", reprlib.repr(given))  # of a class the name that it has in Python
            is_section = word in cls.model_fields
            raise ValueError(
                f"{word!r} is {'a' if is_section else 'no'} section of a study; in Python write "
                f"Study.of({word}={said}), in a file [{section}] {name} = …"
            )
        return values

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """`Study(...)` says what is wrong as `parse` does. A study is no part of another value, so nothing is lost."""
        try:
            return handler(values)
        except ValidationError as error:
            raise explain(cls, error, "") from None


def apply(table: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Write words, dotted keys and whole sections into a study's table. Raises `SettingsError`."""
    if not isinstance(changes, Mapping):
        raise SettingsError(f"settings of a study are a mapping, such as {{'strategy.epochs': 2}}, not {changes!r}")
    for key, value in changes.items():
        if value is None:
            continue
        if isinstance(value, Mapping) and "." not in key:
            section = table.setdefault(key, {})
            for inner, content in value.items():
                section[inner] = _plain(f"{key}.{inner}", content, table)
            continue
        dotted = WORDS.get(key, key)
        if "." not in dotted:
            close = nearest(key, WORDS)
            raise SettingsError(
                f"{key!r} is no word for a study" + (f"; did you mean {close!r}?" if close else ""),
                advice=f"known: {', '.join(WORDS)}; any other key with its section, as in {{'strategy.epochs': 2}}",
            )
        *sections, last = dotted.split(".")
        place = table
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = _plain(dotted, value, table)


def _plain(key: str, value: Any, table: dict[str, Any]) -> Any:
    """A value as it would stand in a file: classes of this process become the names they are known by here."""
    if key == "task.name" and not isinstance(value, str):
        return _task(value, table)
    if key == "strategy.name" and not isinstance(value, str):
        return _strategy(value)
    return str(value) if hasattr(value, "__fspath__") else value


def _task(task: type[Task] | Task, table: dict[str, Any]) -> str:
    from secure_fl.tasks import in_process
    from secure_fl.tasks.base import Task

    if isinstance(task, Task):
        own = task.settings.model_dump(mode="json", exclude_none=True)
        table.setdefault("task", {}).update(own)
    return in_process.add(task)


def _require_task_settings(section: Mapping[str, Any]) -> None:
    """Raise for a wrong setting of a class that this process has. Those of other tasks would have to import torch."""
    from secure_fl.tasks import in_process

    task = in_process.find(str(section.get("name", "")))
    if isinstance(task, type):
        own = {key: value for key, value in section.items() if key not in ("name", "dataset")}
        task.Settings.parse(own.get("settings", own), where="task")


def _strategy(strategy: type[Strategy]) -> str:
    from secure_fl import strategies

    if not isinstance(strategy, type):
        raise SettingsError(
            f"strategy is a name or a Strategy class, not {strategy!r}",
            advice="pass the class; its settings are keys of the study: {'strategy.epochs': 2}",
        )
    return strategies.add(strategy)


def _forget(table: dict[str, Any], section: str, asked: str, *, own: Mapping[str, Any]) -> None:
    """Settings of the task, strategy or protection that was, since another one would refuse them.

    What every strategy has, such as `epochs`, stays.
    """
    from secure_fl import strategies
    from secure_fl.strategies.training import LocalTraining

    known = section == "strategy" and asked in strategies.known()
    kept = LocalTraining.model_fields if known else ()
    for key in (*own, "bits"):
        if key not in kept:
            table.get(section, {}).pop(key, None)


def _forget_suitable_protection(table: dict[str, Any], strategy: str) -> None:
    """A protection that only followed from the strategy follows from the new one."""
    from secure_fl import protect, strategies

    protection = table.get("protection", {})
    if protection.get("kind") == protect.suitable(strategies.asks(strategy)):
        protection.pop("kind")
        protection.pop("bits", None)


def _unwrapped(table: dict[str, Any]) -> dict[str, Any]:
    """`settings` of a task, a strategy or a protection stand in a file beside the other keys."""
    for section in table.values():
        if isinstance(section.get("settings"), dict):
            section.update(section.pop("settings"))
    return table
