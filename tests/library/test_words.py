"""What pages and comments say: sentences that nobody could follow stay away, words are explained once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.page import anchors, missing_links

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PARTS = ("coordinator", "docs", "node", "scripts", "secure_fl", "tests")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WORDS = (
    "Block", "Circle", "Cohort", "Combination", "Exception", "Holder", "Ledger", "Opening", "Phase", "Protection",
    "Roster", "Row", "Round, attempt", "Turn, version, flush", "Witness",
)  # fmt: skip
# Fragments of what was said more plainly since.
OLD = (
    "whose sites differ by one show that site's weight",
    "per round is not bounded",
    "nobody can look behind",
    "opens together",
    "are those from the promises of",
    "a site puts up with",
    "whose outputs all have one shape",
    "say more and more about models",
    "Time runs forwards only",
    "a restart forgets how far",
    "is not lost yet",
    "asks for after the rows it",
    "What f places cannot hold",
    "is all there is of a bias",
    "without a word, what suits the protection",
    "there is no way to ask for one",
    "are 23 commands, and no file",
    "a simulation's noise protects nobody",
    "Who joins alone is shown",
    "counts for itself alone and nobody",
    "a budget does not grow back",
    "It is due anew every",
    "is measured as the site's limit is enforced",
    "half the part of pairs",
    "stay home under a strategy",
    "so it takes your word",
    "arrivals are collected and added",
    "a circle opens when all of it is there",
    "such a block keeps its value",
    "needs no chance for it",
    "goes by the distances it knows",
    "measured in the most that one",
    "In brackets is how many",
    "makes of them; each site compares",
)


def texts() -> Iterator[tuple[Path, str]]:
    """Every page and source file, without its line breaks and the marks of comments."""
    sources = [path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))]
    for path in [*PAGES, *sources]:
        if path != Path(__file__):
            yield path, plain(path.read_text(encoding="utf-8"))


def plain(text: str) -> str:
    return " ".join(re.sub(r"^\s*#+ ?", "", text, flags=re.MULTILINE).split())


def test_sentences_that_were_replaced_do_not_come_back() -> None:
    read = list(texts())
    assert len(read) > 500
    assert not [(path.relative_to(ROOT), said) for path, text in read for said in OLD if said in text]
    assert "is not lost yet" in plain("# Until then what was uploaded is\n    # not lost yet.")


def test_the_glossary_explains_fifteen_words() -> None:
    found = re.findall(r"^## (.+)$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(found) == WORDS
    assert {"block", "round-attempt"} <= anchors(GLOSSARY)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert missing_links(page) == []


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md", "docs/tasks.md", "docs/strategies/README.md"])
def test_who_begins_here_finds_the_glossary(page: str) -> None:
    assert "glossary.md#" in (ROOT / page).read_text(encoding="utf-8")
