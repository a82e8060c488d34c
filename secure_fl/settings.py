"""TOML files to frozen, validated values, with errors a person can act on."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from secure_fl.errors import SettingsError, UnknownNameError

_SHOWN_CHARS = 80

M = TypeVar("M", bound="Settings")

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_DEPTH = 16  # sections in a file, and lists or tables as values of a task's own settings


class Settings(BaseModel):
    """Base of every section: immutable, unknown keys refused, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Validate `values`; raise `SettingsError` naming the offending key."""
        try:
            return cls.model_validate(_tuples(values))
        except ValidationError as error:
            raise _explain(cls, error, where) from None


def read_toml(path: Path, *, missing: str = "check the path") -> dict[str, Any]:
    """The table in `path`; `SettingsError` when it is malformed or, with `missing` as advice, not there."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file", advice=missing) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({type(error).__name__})") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise SettingsError(f"{path}: not valid TOML: nested too deeply") from None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, if any is like it at all."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise `UnknownNameError` with the nearest match unless `name` is known."""
    options = tuple(sorted(known))
    if name not in options:
        raise UnknownNameError(kind, name, nearest=nearest(name, options), known=options)


def set_dotted(table: dict[str, Any], assignment: str) -> None:
    """Apply one `--set key=value` to `table`. The value is read as TOML, or as text where it is no TOML."""
    key, separator, text = assignment.partition("=")
    if not separator or not key.strip():
        raise SettingsError(f"--set {assignment!r}: expected key=value", advice="for example --set strategy.epochs=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text
    *sections, last = key.strip().split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise SettingsError(f"--set {key}: {section!r} is a value, not a section")
    table[last] = value


def _tuples(value: Any, depth: int = 0) -> Any:
    """TOML and JSON arrays as tuples, so that frozen values are frozen all the way down."""
    if depth > _DEPTH:
        # A study comes from the coordinator: no offer may exhaust the stack of the site that reads it.
        raise SettingsError("the settings are nested too deeply")
    if isinstance(value, Mapping):
        return {_tuples(key, depth + 1): _tuples(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_tuples(item, depth + 1) for item in value)
    if isinstance(value, str) and _SURROGATE.search(value):
        # JSON can spell half a character. Nothing can encode it, so no hash, file or log could hold it.
        raise SettingsError("the settings hold text that is not Unicode")
    return value


def _explain(model: type[BaseModel], error: ValidationError, where: str) -> SettingsError:
    """The first problem of a validation, as one line that names the key."""
    problems = error.errors()
    # Of a value that may be a word or something else, what is said of words is for words.
    first = next((each for each in problems if each["type"] != "literal_error" or isinstance(each["input"], str)), None)
    first = first or problems[0]
    # Such a value is reported with the kind that was tried, which is no part of the key. A key that nobody knows is
    # one, whatever is in it.
    parts, unknown = [str(part) for part in first["loc"]], first["type"] == "extra_forbidden"
    location = [part for place, part in enumerate(parts, 1) if "[" not in part or (unknown and place == len(parts))]
    if first["type"].endswith("_type") and location[-1:] and location[-1] in _KINDS:
        location.pop()
    key = ".".join([where, *location] if where else location)
    if first["type"] == "extra_forbidden":
        known = tuple(_fields_at(model, location[:-1]))
        close = nearest(location[-1], known)
        return UnknownNameError("key", key, nearest=close, known=known)
    if first["type"] == "missing":
        return SettingsError(f"{key}: this key is required")
    given = "" if isinstance(first["input"], Mapping) else f" (got {_short(first['input'])})"
    kind, limits = first["type"], first.get("ctx", {})
    if kind == "literal_error":
        return _not_among(key, first["input"], str(limits["expected"]))
    message = _PLAIN[kind].format(**limits) if kind in _PLAIN else first["msg"].removeprefix("Value error, ")
    return SettingsError(f"{key}: {message}{given}" if key else message, advice=_NUMBERS.get(kind))


_KINDS = {"int", "float", "str", "bool"}

# What pydantic says, in the words of somebody who writes a file.
_PLAIN = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be {ge:g} or more",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be {le:g} or less",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "dict_type": "must be a table",
    "model_type": "must be a section, with keys of its own",
    "tuple_type": "must be a list",
    "string_pattern_mismatch": "does not have the form {pattern}",
    "string_too_long": "may have {max_length} characters at most",
    "too_short": "must have {min_length} entries or more",
}
_NUMBERS = dict.fromkeys(("int_type", "float_type"), "numbers stand without quotes: 3, 0.05, 1e-5")


def _not_among(key: str, given: object, expected: str) -> SettingsError:
    """A word that is none of those allowed, with the nearest that is."""
    allowed = tuple(re.findall(r"'([^']*)'", expected))
    close = nearest(given, allowed) if isinstance(given, str) else None
    suggestion = f"; did you mean {close!r}?" if close else ""
    return SettingsError(f"{key}: {_short(given)} is not possible{suggestion}", advice=f"one of: {', '.join(allowed)}")


def _short(value: object) -> str:
    """A value as it was given, cut where it stops helping."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _fields_at(model: type[BaseModel], location: list[str]) -> list[str]:
    for part in location:
        field = model.model_fields.get(part)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return []
        model = field.annotation
    return list(model.model_fields)
