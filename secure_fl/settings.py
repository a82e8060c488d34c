"""TOML files to frozen, validated values, with errors a person can act on."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from secure_fl.errors import SettingsError, UnknownNameError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHOWN_CHARS = 80

M = TypeVar("M", bound="Settings")

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_DEPTH = 16  # sections in a file, and lists or tables as values of a task's own settings


def _possible_path(text: str) -> str:
    if "\0" in text:
        raise ValueError("a path has no character NUL in it")
    return text


PathText: TypeAlias = Annotated[str, AfterValidator(_possible_path)]


class Settings(BaseModel):
    """Base of every section: immutable, unknown keys refused, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Validate `values`; raise `SettingsError` naming the offending key."""
        try:
            return cls.model_validate(_tuples(values))
        except ValidationError as error:
            raise explain(cls, error, where) from None


def read_toml(path: Path, *, missing: str = "check the path") -> dict[str, Any]:
    """The table in `path`; `SettingsError` when it is malformed or, with `missing` as advice, not there."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file", advice=missing) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read ({type(error).__name__})") from None
    except ValueError as error:  # TOMLDecodeError is one; so is what Python says of numbers with thousands of digits.
        raise SettingsError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise SettingsError(f"{path}: not valid TOML: nested too deeply") from None


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """The known name most like `name`, if any is like it at all."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
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
    except (ValueError, RecursionError):
        if text.lstrip().startswith("{"):
            raise SettingsError(
                f"--set {key}: {_short(text)} is not a table in TOML", advice='for example {"site-02"=5.0}'
            ) from None
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


def explain(model: type[BaseModel], error: ValidationError, where: str) -> SettingsError:
    """The first problem of a validation, as one line that names the key."""
    problems = error.errors()
    # Of a value that may be a word or something else, what is said of words is for words.
    first = next((each for each in problems if each["type"] != "literal_error" or isinstance(each["input"], str)), None)
    first = first or problems[0]
    # Such a value is reported with the kind that was tried, which is no part of the key. A key that nobody knows is
    # one, whatever is in it.
    parts, unknown = list(first["loc"]), first["type"] == "extra_forbidden"
    location = [
        part for place, part in enumerate(parts, 1) if "[" not in str(part) or (unknown and place == len(parts))
    ]
    if first["type"].endswith("_type") and location[-1:] and location[-1] in _KINDS:
        location.pop()
    key = _key([where, *location] if where else location)
    if unknown:
        known = tuple(_fields_at(model, location[:-1]))
        return UnknownNameError("key", key, nearest=nearest(str(location[-1]), known), known=known)
    if first["type"] == "missing":
        return SettingsError(f"{key}: this key is required")
    if first["type"] == "literal_error":
        return _not_among(key, first["input"], str(first["ctx"]["expected"]))
    given = "" if isinstance(first["input"], Mapping) else f" (got {_short(first['input'])})"
    message = _plain(first, _fields_at(model, location[:-1]).get(str(location[-1])) if location else None)
    return SettingsError(f"{key}: {message}{given}" if key else message, advice=_NUMBERS.get(first["type"]))


_KINDS = {"int", "float", "str", "bool"}

# What pydantic says, in the words of somebody who writes a file.
_PLAIN = {
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "dict_type": "must be a table",
    "model_type": "must be a section, with keys of its own",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "none_required": "must be left out",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_pattern_mismatch": "does not have the form {pattern}",
    "string_too_long": "may have {max_length} characters at most",
    "string_too_short": "must have {min_length} characters or more",
    "too_short": "must have {min_length} entries or more",
    "too_long": "may have {max_length} entries at most",
}
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_LIMITS = {"gt": "above {}", "ge": "{} or more", "lt": "below {}", "le": "{} or less"}
_NUMBERS = dict.fromkeys(("int_type", "float_type"), "numbers stand without quotes: 3, 0.05, 1e-5")


def _plain(problem: ErrorDetails, field: FieldInfo | None) -> str:
    """What a value must be; of a number that is everything which is allowed, and not only what it went against."""
    kind, limits = problem["type"], problem.get("ctx", {})
    if kind in _BOUNDS:
        return f"must be {_allowed(field) or _within(limits)}"
    if kind not in _PLAIN:
        return problem["msg"].removeprefix("Value error, ")
    if kind == "string_pattern_mismatch" and field is not None and field.description:
        return f"must be {field.description}"
    if kind in ("too_short", "string_too_short") and limits.get("min_length") == 1:
        return "must not be empty"
    message = _PLAIN[kind].format(**limits)
    allowed = _allowed(field) if kind in ("int_type", "int_from_float", "float_type", "finite_number") else ""
    return (
        f"{message}{' ' if allowed.startswith(('from', 'above', 'below')) else ', '}{allowed}" if allowed else message
    )


def _allowed(field: FieldInfo | None) -> str:
    """From where to where a number may go, in words; nothing where it has no bounds."""
    if field is None:
        return ""
    return _within({name: getattr(one, name) for one in field.metadata for name in _LIMITS if hasattr(one, name)})


def _within(limits: Mapping[str, Any]) -> str:
    if "ge" in limits and "le" in limits:
        return f"from {limits['ge']} to {limits['le']}"
    return " and ".join(words.format(limits[name]) for name, words in _LIMITS.items() if name in limits)


def _key(location: Iterable[str | int]) -> str:
    """A key as it stands in a file; of a list, which entry, counted from one."""
    key = ""
    for part in location:
        key += f", entry {part + 1}" if isinstance(part, int) else f".{part}" if key else part
    return key


def _not_among(key: str, given: object, expected: str) -> SettingsError:
    """A word that is none of those allowed, with the nearest that is."""
    allowed = tuple(re.findall(r"'([^']*)'", expected))
    close = nearest(given, allowed) if isinstance(given, str) else None
    suggestion = f"; did you mean {close!r}?" if close else ""
    return SettingsError(f"{key}: {_short(given)} is not possible{suggestion}", advice=f"one of: {', '.join(allowed)}")


def _short(value: object) -> str:
    """A value as it was given, cut where it stops helping."""
    text = _as_written(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _as_written(value: object) -> str:
    """As in a file, which has no tuples and no True."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_as_written, value[:_SHOWN_CHARS]))}]"
    return "nothing" if value is None else repr(value)


def _fields_at(model: type[BaseModel], location: Iterable[str | int]) -> Mapping[str, FieldInfo]:
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return {}
        model = field.annotation
    return model.model_fields


def section_name(*keys: str) -> str:
    """The heading of a table as TOML wants it: `[datasets.wards]`, `[datasets."wards:Wards"]`."""
    return f"[{'.'.join(key if _BARE.fullmatch(key) else json.dumps(key) for key in keys)}]"
