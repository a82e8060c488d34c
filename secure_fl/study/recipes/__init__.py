"""Studies to start from: one TOML file each, whose first line says what it is."""

from __future__ import annotations

from importlib.resources import files

from secure_fl.settings import require_known

_ENDING = ".toml"


def known() -> dict[str, str]:
    """Name → one line about it."""
    found = sorted(file.name for file in files(__name__).iterdir() if file.name.endswith(_ENDING))
    return {name.removesuffix(_ENDING): _text(name).splitlines()[0].removeprefix("# ") for name in found}


def written(name: str, *, study: str, seed: int, roster: str) -> str:
    """The recipe as a study file. `roster` are lines of TOML. Raises `UnknownNameError`."""
    require_known("recipe", name, known())
    text = _text(name + _ENDING)
    for word, value in {"@name@": study, "@seed@": str(seed), "@roster@": roster}.items():
        text = text.replace(word, value)
    return text


def _text(file: str) -> str:
    return (files(__name__) / file).read_text(encoding="utf-8")
