"""docs/privacy.md says of settings, strategies and the ledger what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node.config import DatasetSection, PolicySection
from secure_fl import strategies
from secure_fl.privacy.ledger import KINDS
from secure_fl.study.private import PrivacySection
from secure_fl.study.settings import PLAIN_METRICS
from tests.support.page import missing_links
from tests.support.processes import ROOT

PATH = ROOT / "docs" / "privacy.md"
PAGE = PATH.read_text(encoding="utf-8")
# Pages about privacy, or that lead to one.
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "strategies").glob("*.md"),
        *(ROOT / "docs" / "adr").glob("*.md"),
    ]
)


def rows(heading: str) -> dict[str, list[str]]:
    """The tables under a heading: what stands in the first column → the other cells."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = {}
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("|--"):
            first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
            found[first.strip("| ")] = others
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert missing_links(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A\n[one](#a) [two](#b) [three](other.md) [four](page.md#a)\n")
    assert missing_links(tmp_path / "page.md") == ["#b", "other.md"]


def test_every_setting_of_a_study_is_there_with_its_default() -> None:
    listed = {key.strip("`"): cells for key, cells in rows("What a study sets").items() if key != "key"}
    fields = PrivacySection.model_fields
    assert listed.keys() == fields.keys()
    for key, (default, _) in listed.items():
        value = fields[key].get_default(call_default_factory=True)
        written = "none; has to be set" if value is None else f'`"{value}"`' if isinstance(value, str) else f"`{value}`"
        assert default == written, key


def test_what_a_site_sets_is_in_its_file() -> None:
    section = PAGE.partition("\n## What a site sets\n")[2].partition("\n## ")[0]
    assert "units" in DatasetSection.model_fields
    assert {"epsilon", "delta", "exceptions"} <= PolicySection.model_fields.keys()
    for word in (
        "`[datasets.ID] units`",
        "`[policy] epsilon`, `delta`",
        "`[policy] exceptions`",
        f'`"{PLAIN_METRICS}"`',
    ):
        assert word in section


def test_every_strategy_is_in_the_table_with_what_it_charges() -> None:
    charged = {}
    for names, (_, _, passes) in rows("What trains under noise").items():
        for name in re.findall(r"`(\w+)`", names):
            charged[name] = int(re.findall(r"\d+", passes)[0])
    assert charged == {name: strategies.create(name, {}).charged_epochs() for name in strategies.known()}


def test_what_trains_freely_is_what_the_strategies_say() -> None:
    freely = set()
    for names, (_, free, _) in rows("What trains under noise").items():
        if free != "–":
            freely |= set(re.findall(r"`(\w+)`", names))
    notes = {name: strategies.create(name, {}).private_notes for name in strategies.known()}
    assert freely == {name for name, said in notes.items() if any(note.startswith("Without noise") for note in said)}


def test_every_strategy_page_has_a_paragraph() -> None:
    for page in (ROOT / "docs" / "strategies").glob("*.md"):
        assert "**Under differential privacy**" in page.read_text(encoding="utf-8"), page.name


def test_the_words_of_the_ledger_are_those_it_has() -> None:
    said = " ".join(cells[0] for cells in rows("What is counted").values())
    words = set(re.findall(r"`(\w+)`", said))
    assert words == {"planned", "sent", "cancelled", "refused"}
    assert words <= KINDS
