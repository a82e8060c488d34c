"""The public API does not change unnoticed: names and signatures are compared with a committed list.

After a change that is meant: `python -m tests.api.test_public_api` writes the list anew; say so in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import secure_fl
from secure_fl.api.operator import Exported
from secure_fl.api.run import Models

LISTED = Path(__file__).with_name("public_api.txt")
_STUDY = ("of", "changed", "read", "check", "completed", "id")  # of a study's methods, those meant for people


def public_api() -> Iterator[str]:
    for name in sorted(secure_fl.__all__):
        value = getattr(secure_fl, name)
        if inspect.isclass(value):
            yield from _members(value, only=_STUDY if name == "Study" else None)
        elif callable(value):
            yield f"{name}{inspect.signature(value)}"
        else:
            yield name
    for value in (Exported, Models):
        yield from _members(value)


def _members(cls: type, only: tuple[str, ...] | None = None) -> Iterator[str]:
    yield f"class {cls.__name__}" + ("" if only else str(inspect.signature(cls)))
    for name in sorted(only or (name for name in vars(cls) if not name.startswith("_"))):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, property):
            yield f"    {name}: property"
        elif callable(getattr(cls, name)):
            yield f"    {name}{inspect.signature(getattr(cls, name))}"
        else:
            yield f"    {name}"


def test_the_public_api_is_the_one_that_is_listed() -> None:
    assert "\n".join(public_api()) + "\n" == LISTED.read_text(encoding="utf-8")


def test_the_front_door_knows_its_names() -> None:
    assert {*secure_fl._HOMES, "__version__"} == {*secure_fl.__all__}
    assert set(secure_fl.__all__) <= set(dir(secure_fl))
    assert not hasattr(secure_fl, "simulat")


if __name__ == "__main__":
    LISTED.write_text("\n".join(public_api()) + "\n", encoding="utf-8")
