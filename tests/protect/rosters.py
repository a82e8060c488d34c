"""Studies for tests."""

from __future__ import annotations

from typing import Any

from secure_fl.study.settings import Study


def roster(sites: int) -> dict[str, str]:
    """That many sites with fingerprints of their own."""
    return {f"site-{number}": f"{number:064x}" for number in range(1, sites + 1)}


def study(sites: int = 4, /, **sections: dict[str, Any]) -> Study:
    """A study among `sites` sites; keyword arguments are sections, as in the file."""
    own = {"roster": roster(sites), **sections.pop("study", {})}
    return Study.parse({"study": own, **sections})
