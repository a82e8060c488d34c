"""The audit page: complete, plain, honest about what is unbounded, and readable on a desk, a phone and paper."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.privacy.audit import Audit, examine
from secure_fl.privacy.audit_faults import StudyTerms
from secure_fl.privacy.decisions import approval, refusal
from secure_fl.privacy.ledger import read_site_ledger
from secure_fl.report import audit_page, registry_file
from tests.report.test_browser import (
    CHROMIUM,
    DESKTOP,
    LEAST_CONTRAST,
    OVERFLOWING,
    PHONE,
    SCHEMES,
    SMALLEST_TEXT,
    TEXTS,
    contrast,
    opened,
)
from tests.support.ledgers import HEART, LUNG, Story, noisy

PAPER = (720, 1000)  # an A4 page's text, about
HOSTILE = "<script>alert('x')</script>\"' \u202e& ---\n- a: !!python/object 'b' # c"


def told(folder: Path, authority: Authority, site: Credential, *, name: str = "heart-2026", **more: Any) -> Audit:
    """A site with a data set under noise and one without."""
    folder.mkdir(parents=True, exist_ok=True)
    story = Story(folder / "ledger.jsonl", authority, site)
    decision = approval(study_id=HEART, name=name, by=name, dataset="ward-7", epsilon=3.0, code="cd" * 32)
    story.ledger.append("approved", decision)
    story.rounds(HEART, (1, 2, 3), privacy=noisy(not_covered=[name], split=name))
    story.cancel(story.plan(HEART, 4, privacy=noisy(not_covered=[name], split=name)))
    story.plan(HEART, 5, privacy=noisy(not_covered=[name], split=name))
    story.ledger.append("refused", refusal(study_id=LUNG, round=1, reason="Refused"))
    story.rounds(LUNG, (1, 2), dataset="clinic" if name.startswith("h") else name)
    entries = read_site_ledger(story.path, authority=authority.ca_pem)
    terms = StudyTerms(id=HEART, name=name, rationale=f"Few patients. {name}")
    return examine(entries, notes=[story.note()], studies=[terms], **more)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, consortium: Authority, north: Credential) -> Audit:
    return told(tmp_path_factory.mktemp("audit"), consortium, north)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, consortium: Authority, north: Credential) -> Audit:
    return told(tmp_path_factory.mktemp("hostile"), consortium, north, name=HOSTILE)


def text_of(page: str) -> str:
    """What a reader sees, as one line."""
    body = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_everything_that_an_officer_asks_is_answered(found: Audit) -> None:
    page = text_of(audit_page.render(found))
    ward = next(dataset for dataset in found.datasets if dataset.name == "ward-7")
    for words in (
        ward.sentence,
        "everything holds",
        "What ε does not cover",
        "that the site took part, in which studies and rounds, and when",
        "NIST SP 800-226",
        "1e-05",
        "add or remove one",
        "approximate differential privacy",
        "144 steps with sampling rate 0.1111 and noise multiplier 3.08",
        "opacus 1.6.0",
        "Rényi filter",
        "nobody outside the site is trusted",
        "the operating system's secure generator",
        "one record (one row)",
        "Few patients. heart-2026",
        "Not in a ledger: the study's report shows accuracy or error per site",
        "a ledger cannot show that noise was really added",
        "1 planned round was never closed",
        found.head.head,
        found.certificates[0].fingerprint,
    ):
        assert words in page, words


def test_what_has_no_bound_is_said_in_words_and_never_as_zero(found: Audit) -> None:
    page = text_of(audit_page.render(found))
    assert "Data set clinic: Nothing limits how much the results can reveal about single records" in page
    rows = re.findall(r"<tr><th scope=\"row\"[^>]*>clinic</th>.*?</tr>", audit_page.render(found))
    assert rows
    assert all("no bound" in row and ">0<" not in row for row in rows)
    clinic = page[page.index("Rationale Few") :] if "Rationale Few" in page else page
    assert "No noise is added" in clinic


def test_a_ledger_that_does_not_hold_says_so_first(tmp_path: Path, consortium: Authority, north: Credential) -> None:
    story = Story(tmp_path / "ledger.jsonl", consortium, north)
    facts = story.plan(HEART, 1)
    story.send(facts)
    story.send(facts)
    page = text_of(audit_page.render(examine(read_site_ledger(story.path, authority=consortium.ca_pem))))
    assert "does not hold" in page
    assert "Entry 3 (sent) comes after 'sent' of the same attempt" in page
    assert "The ledger holds" not in page
    assert "no notes of other sites were at hand" in page


def test_a_site_that_did_nothing_has_a_page(tmp_path: Path, consortium: Authority, north: Credential) -> None:
    story = Story(tmp_path / "ledger.jsonl", consortium, north)
    found = examine(read_site_ledger(story.path, authority=consortium.ca_pem))
    assert "Nothing left this site." in text_of(audit_page.render(found))
    assert "there is nothing to register" in registry_file.render(found)


def test_the_same_audit_gives_the_same_page(found: Audit) -> None:
    assert audit_page.render(found) == audit_page.render(found)


# --- the registry -----------------------------------------------------------------------------------------------


def documents(text: str) -> list[Any]:
    """Just as much YAML as is written: mappings by indentation, lists, and JSON for everything else."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [_mapping(part.splitlines()) for part in "\n".join(lines).split("---\n")[1:]]


def _mapping(lines: list[str]) -> Any:
    """Each line must be `key: JSON`, `key:`, `- JSON` or `-`, and nothing else."""
    items: list[Any] = []
    values: dict[str, Any] = {}
    pad = len(lines[0]) - len(lines[0].lstrip())
    while lines:
        line = lines.pop(0)
        own = re.fullmatch(rf" {{{pad}}}(?:-|([a-z_]+):)(?: (.+))?", line)
        assert own, line
        inner = []
        while lines and len(lines[0]) - len(lines[0].lstrip()) > pad:
            inner.append(lines.pop(0))
        value = json.loads(own[2]) if own[2] else _mapping(list(inner))
        assert bool(own[2]) != bool(inner)
        if own[1]:
            values[own[1]] = value
        else:
            items.append(value)
    assert not (items and values)
    return items or values


def test_a_registry_entry_has_the_registrys_fields(found: Audit) -> None:
    (entry,) = documents(registry_file.render(found))
    assert entry["status"] == "Draft"
    deployment = entry["deployment"]
    assert list(deployment) == [
        "basic", "dp_variant", "privacy_loss", "deployment_model", "accounting", "implementation", "administrative",
    ]  # fmt: skip
    ward = next(dataset for dataset in found.datasets if dataset.name == "ward-7")
    parameters = deployment["privacy_loss"]["privacy_parameters"]
    assert parameters["epsilon"] == pytest.approx(ward.epsilon, rel=1e-5)
    assert parameters["delta"] == 1e-5
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert deployment["implementation"]["justification"] == "Few patients. heart-2026"
    assert '# "clinic" is no deployment of differential privacy' in registry_file.render(found)


def test_names_cannot_write_yaml_of_their_own(hostile: Audit) -> None:
    text = registry_file.render(hostile)
    (entry,) = documents(text)
    assert HOSTILE in entry["deployment"]["basic"]["description"]
    assert entry["deployment"]["implementation"]["justification"] == f"Few patients. {HOSTILE}"
    assert text.isascii()


# --- in a browser -----------------------------------------------------------------------------------------------

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser: see tests/report/test_browser.py")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, found: Audit, hostile: Audit) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, audit in (("found", found), ("hostile", hostile)):
        (folder / f"{name}.html").write_text(audit_page.render(audit), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in ("found", "hostile")}


@in_browser
@pytest.mark.parametrize("name", ["found", "hostile"])
def test_it_says_nothing_asks_for_nothing_and_fits(browser: Browser, pages: dict[str, Path], name: str) -> None:
    for size in (DESKTOP, PHONE):
        with opened(browser, pages[name], size) as visit:
            assert visit.complaints == []
            assert visit.requests == [pages[name].as_uri()]
            assert visit.page.locator("script, img, iframe, link").count() == 0
            assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert visit.page.evaluate(OVERFLOWING) == []
            texts = visit.page.evaluate(TEXTS)
            assert len(texts) > 100
            assert [text for text in texts if text["pixels"] < SMALLEST_TEXT] == []


@in_browser
def test_nothing_is_cut_off_on_paper(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["found"], PAPER) as visit:
        visit.page.emulate_media(media="print")
        assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert visit.page.evaluate(OVERFLOWING) == []
        hidden = "all => all.filter(one => one.scrollHeight > one.clientHeight + 1).length"
        assert visit.page.locator(".scroll").evaluate_all(hidden) == 0


@in_browser
def test_text_stands_out(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["found"]) as visit:
        for scheme in SCHEMES:
            visit.page.emulate_media(color_scheme=scheme)
            texts = visit.page.evaluate(TEXTS)
            assert [text for text in texts if contrast(text["ink"], text["paper"]) < LEAST_CONTRAST] == []


@in_browser
def test_the_charts_show_every_use_and_the_limit(browser: Browser, pages: dict[str, Path], found: Audit) -> None:
    ward = next(dataset for dataset in found.datasets if dataset.name == "ward-7")
    for size in (DESKTOP, PHONE):
        with opened(browser, pages["found"], size) as visit:
            shown = "all => all.filter(one => one.checkVisibility()).length"
            assert visit.page.locator("svg .line.mean circle").evaluate_all(shown) == len(ward.uses)
            assert visit.page.locator("svg .line.d1 path").evaluate_all(shown) == 1
            assert visit.page.locator("svg rect.up").evaluate_all(shown) == 2


def test_a_limit_that_was_raised_is_drawn_as_it_was_at_each_time(
    tmp_path: Path, consortium: Authority, north: Credential
) -> None:
    """Drawn with the last limit throughout, the page would say that more had been allowed than was."""
    story = Story(tmp_path / "ledger.jsonl", consortium, north)
    for number, epsilon in ((1, 3.0), (2, 3.0), (3, 6.0)):
        policy = {"epsilon": epsilon, "delta": 1e-5}
        story.rounds(HEART, (number,), privacy=noisy(policy=policy))
    page = audit_page.render(examine(read_site_ledger(story.path, authority=consortium.ca_pem)))
    (title, path) = re.findall(r"<title>(limit: [^<]+)</title><path d=\"([^\"]+)\"", page)[0]
    assert re.fullmatch(r"limit: ε = 3 from [0-9: -]+, ε = 6 from [0-9: -]+", title)
    steps = re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)", path)
    assert len(steps) == 2
    assert steps[0][2] == steps[1][0]  # The one ends where the other begins,
    assert float(steps[0][1]) > float(steps[1][1])  # and lies below it: y grows downwards.
    assert "limit 6, changed once" in page
