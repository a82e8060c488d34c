"""The report in a real browser: silent, offline, drawn to scale, readable on a phone and in the dark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from secure_fl.report import Step, render
from secure_fl.results.record import StudyRecord
from secure_fl.study.settings import Study
from tests.report.test_report import HOSTILE, study, summary
from tests.support.processes import ROOT

CHROMIUM = os.environ.get("SECURE_FL_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser: `apt-get install chromium`, or set SECURE_FL_CHROMIUM=/path/to/chromium"
)

DESKTOP, PHONE = (1280, 900), (390, 844)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SMALLEST_TEXT = 12.0  # pixels
LEAST_CONTRAST = 4.5  # WCAG 2 AA for text


@dataclass(frozen=True)
class Report:
    """A page on disk and the record it was made from."""

    path: Path
    record: StudyRecord


@dataclass
class Visit:
    """A page that was opened, and everything it did besides showing itself."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def asked(self, dialog: Dialog) -> None:
        """A page that opens a dialog waits for its answer."""
        self.complaints.append(dialog.message)
        dialog.dismiss()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """One report of a real run, and of records that no friendly run would leave."""
    folder = tmp_path_factory.mktemp("reports")
    hostile_names = (HOSTILE, "<script>document.title='owned'</script>", "x" * 200, "病院-東京")
    dropouts = study(6, 9, protection="none")
    last = dropouts.rounds[-1]
    dropouts = replace(dropouts, rounds=(*dropouts.rounds[:-1], replace(last, attempts=3, seconds=90.0)))
    records = {
        "dropouts": dropouts,
        "no metrics": study(4, 5, share="none", outcome="running"),
        "mean only": study(4, 5, share="aggregate"),
        "error": study(4, 5, measure="mse"),
        "large": study(30, 200),
        "hostile": study(names=hostile_names, text=HOSTILE, protection=HOSTILE, outcome="aborted"),
        "one round": study(3, 1),
        "empty": study(3, 0, outcome="running"),
    }
    made = {"run": _real_run(folder / "run")}
    for name, record in records.items():
        steps = (Step(why="Again.", command=f"secure-fl study export {'5a' * 32} --out {'long/' * 30}"),)
        values = summary(record, mean_accuracy=None) if name == "error" else summary(record)
        page = render(record, values, Study(), steps=steps, written=datetime(2026, 1, 2, tzinfo=UTC))
        path = folder / f"{name.replace(' ', '-')}.html"
        path.write_text(page, encoding="utf-8")
        made[name] = Report(path, record)
    return made


def _real_run(folder: Path) -> Report:
    # In a process of its own: playwright keeps this one's event loop.
    script = str(Path(sys.executable).parent / "secure-fl")
    arguments = ("--engine", "threads", "--nodes", "3", "--rounds", "3", "--task", "breast-cancer")
    subprocess.run([script, "run", *arguments, "--out", str(folder), "--json"], check=True, cwd=ROOT, timeout=120)
    (record,) = folder.glob("coordinator/state/studies/*/record.json")
    return Report(folder / "report.html", StudyRecord.load(record))


NAMES = ("run", "dropouts", "no metrics", "mean only", "error", "large", "hostile", "one round", "empty")


@pytest.fixture(scope="module")
def browser(reports: dict[str, Report]) -> Iterator[Browser]:
    """The installed Chromium, started once."""
    with sync_playwright() as playwright:
        # Containers often have no user namespaces for the sandbox; the pages are our own files.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, path: Path, size: tuple[int, int] = DESKTOP) -> Iterator[Visit]:
    """A page in a fresh context, unfolded, with everything it says and asks for written down."""
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    visit = Visit(page)
    page.on("console", lambda message: visit.complaints.append(message.text))
    page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    page.on("dialog", visit.asked)
    page.on("request", lambda request: visit.requests.append(request.url))
    page.goto(path.as_uri())
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true })")
    try:
        yield visit
    finally:
        page.close()


def test_what_must_not_happen_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<script>console.error('said'); alert('asked'); undefined.thrown</script><img src='http://127.0.0.1:9/x'>"
        "<p id=p style='font-size:9px;color:#999;background:#fff;width:2000px'>small, pale and wide</p>"
    )
    with opened(browser, bad, PHONE) as visit:
        assert any("said" in text for text in visit.complaints)
        assert any("asked" in text for text in visit.complaints)
        assert any("thrown" in text for text in visit.complaints)
        assert "http://127.0.0.1:9/x" in visit.requests
        (text,) = visit.page.evaluate(TEXTS)
        assert (text["pixels"], round(contrast(text["ink"], text["paper"]), 1)) == (9, 2.8)
        assert visit.page.evaluate(OVERFLOWING) == ["P"]


@pytest.mark.parametrize("name", NAMES)
def test_says_nothing_and_asks_for_nothing(browser: Browser, reports: dict[str, Report], name: str) -> None:
    report = reports[name]
    with opened(browser, report.path) as visit:
        visit.page.emulate_media(color_scheme="dark", media="print")
        assert visit.complaints == []
        assert visit.requests == [report.path.as_uri()]
        assert visit.page.title().endswith("study report")
        assert visit.page.locator("script, img, iframe, link").count() == 0
        # The style sheet passed the page's own content policy.
        assert visit.page.evaluate("getComputedStyle(document.querySelector('h1')).fontWeight") == "650"


# Every chart that is shown: its frame, and its marks by class with their boxes and the points of their paths.
CHARTS = """() => [...document.querySelectorAll('svg.chart')].filter(svg => svg.checkVisibility()).map(svg => {
  const box = element => { const r = element.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] }
  const marks = {}, texts = [...svg.querySelectorAll('text')].map(box)
  for (const mark of svg.querySelectorAll('.line path, .line circle, rect')) {
    const kind = `${mark.closest('.line')?.classList[1] ?? mark.classList[0]} ${mark.tagName}`
    const points = (mark.getAttribute('d') ?? '').split(/[ML]/).length - 1
    ;(marks[kind] ??= []).push({box: box(mark), points})
  }
  const title = svg.closest('figure').querySelector('figcaption').firstChild.textContent
  return {title, frame: box(svg), marks, texts}
})"""


def inside(box: list[float], frame: list[float], slack: float = 4.0) -> bool:
    """Whether one box lies in another."""
    left, top, right, bottom = box
    return (
        left >= frame[0] - slack
        and top >= frame[1] - slack
        and right <= frame[2] + slack
        and bottom <= frame[3] + slack
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "empty"])
def test_every_value_has_its_mark(browser: Browser, reports: dict[str, Report], name: str) -> None:
    record = reports[name].record
    with opened(browser, reports[name].path) as visit:
        for width, height in (DESKTOP, PHONE):
            visit.page.set_viewport_size({"width": width, "height": height})
            check_charts(record, {chart["title"]: chart for chart in visit.page.evaluate(CHARTS)}, width)
        cells = visit.page.locator("table.grid td:not(.total)").evaluate_all(
            "all => all.map(one => [one.textContent, getComputedStyle(one, '::before').width, one.offsetHeight])"
        )
        sparks = visit.page.locator("svg.spark .own").count()
    nodes = [node for entry in record.rounds for node in entry.nodes]
    assert Counter(text for text, _, _ in cells) == Counter(node.outcome for node in nodes)
    assert all(float(width.removesuffix("px")) >= 3 and height >= 12 for _, width, height in cells)
    assert sparks == len({node.name for node in nodes if (node.accuracy, node.mse) != (None, None)})


def check_charts(record: StudyRecord, charts: dict[str, Any], window: int) -> None:
    """As many marks as the record has values, and no chart for what it has none of."""
    rounds = record.rounds
    nodes = [node for entry in rounds for node in entry.nodes]
    drawn: dict[str, tuple[list[float | None], list[float | None]]] = {
        title: ([getattr(node, measure) for node in nodes], [getattr(entry, f"mean_{measure}") for entry in rounds])
        for measure, title in (("accuracy", "Accuracy"), ("mse", "Error (MSE)"), ("loss", "Loss"))
    }
    for name in {name for entry in rounds for name in entry.metrics}:
        drawn[name] = ([node.metrics.get(name) for node in nodes], [entry.metrics.get(name) for entry in rounds])
    for title, (of_sites, of_means) in drawn.items():
        known = [sum(value is not None for value in values) for values in (of_sites, of_means)]
        chart = charts.pop(f"{title} after each round", None)
        assert (chart is not None) == (sum(known) > 0)
        if chart:
            marks = Counter[str]()
            for kind, found in chart["marks"].items():
                marks[kind] = sum(mark["points"] or 1 for mark in found)
            # Sites get a dot only for a value between two gaps; a short mean has one at every value.
            assert marks["site path"] + marks["site circle"] == known[0]
            assert marks["mean path"] == known[1]
            assert marks["mean circle"] == (known[1] if len(rounds) <= 25 else 0)
            check_boxes(chart, window)
    time, traffic = charts.pop("Time per round"), charts.pop("Bytes per site")
    assert charts == {}
    repeated = sum(entry.attempts > 1 for entry in rounds)
    assert len(time["marks"].get("again rect", ())) == repeated
    assert len(time["marks"].get("up rect", ())) == len(rounds) - repeated
    assert len(traffic["marks"]["down rect"]) == sum(entry.bytes_down > 0 for entry in rounds)
    check_boxes(time, window)
    check_boxes(traffic, window, empty=sum(entry.bytes_up == 0 for entry in rounds))


def check_boxes(chart: dict[str, Any], window: int, *, empty: int = 0) -> None:
    """Every mark and label of a chart is drawn, in the chart, in the window; so many marks stand for nothing."""
    assert 0 <= chart["frame"][0] < chart["frame"][2] <= window
    assert chart["frame"][2] - chart["frame"][0] > 300
    boxes = [mark["box"] for found in chart["marks"].values() for mark in found]
    assert boxes
    assert [box for box in (*boxes, *chart["texts"]) if not inside(box, chart["frame"])] == []
    flat = [box for box in boxes if box[2] - box[0] <= 0 or box[3] - box[1] <= 0]
    assert len(flat) == empty


# Each piece of text: what it says, how large it is drawn (SVG scaled), its colour and what lies behind it.
TEXTS = """() => {
  const seen = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  const solid = colour => !/, 0\\)$|transparent/.test(colour)
  for (let node; node = walker.nextNode();) {
    const element = node.parentElement, box = element.getBoundingClientRect()
    if (!node.textContent.trim() || !element.checkVisibility() || box.width <= 1 || element.closest('title')) continue
    if (element.closest('style, script')) continue
    const style = getComputedStyle(element), svg = element.closest('svg')
    let behind = element
    while (behind.parentElement && !solid(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1
    seen.push({text: node.textContent.trim().slice(0, 40), pixels: parseFloat(style.fontSize) * scale,
      ink: svg ? style.fill : style.color, paper: getComputedStyle(behind).backgroundColor})
  }
  for (const cell of document.querySelectorAll('table.grid:not(.many) td.d, .key i.d')) {
    const style = getComputedStyle(cell, '::before'), own = style.backgroundColor
    seen.push({text: style.content, pixels: 12, ink: style.color,
      paper: solid(own) ? own : getComputedStyle(cell).backgroundColor})
  }
  return seen
}"""

# What sticks out of the window, unless it lies in a container that scrolls by itself.
OVERFLOWING = """() => [...document.body.querySelectorAll('*')].filter(element => {
  if (element.getBoundingClientRect().right <= innerWidth + 0.5) return false
  for (let up = element.parentElement; up; up = up.parentElement)
    if (/auto|scroll/.test(getComputedStyle(up).overflowX)) return false
  return true
}).map(element => element.tagName)"""


def contrast(ink: str, paper: str) -> float:
    """The WCAG 2 contrast ratio of two opaque colours as `getComputedStyle` writes them."""
    light, dark = sorted(map(_luminance, (ink, paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    assert colour.startswith("rgb("), colour
    channels = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_readable_on_a_phone(browser: Browser, reports: dict[str, Report], name: str) -> None:
    with opened(browser, reports[name].path, PHONE) as visit:
        page = visit.page
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(OVERFLOWING) == []
        texts = page.evaluate(TEXTS)
        assert len(texts) > 30
        assert [text for text in texts if text["pixels"] < SMALLEST_TEXT] == []
        boxes = page.locator(".scroll, pre").evaluate_all(
            "all => all.map(one => [one.scrollWidth, one.clientWidth, (one.scrollLeft = 1e6, one.scrollLeft)])"
        )
        assert boxes
        assert all(moved == pytest.approx(wide - shown, abs=1) for wide, shown, moved in boxes)
        assert any(wide > shown for wide, shown, _ in boxes)


@pytest.mark.parametrize("name", NAMES)
def test_text_stands_out(browser: Browser, reports: dict[str, Report], name: str) -> None:
    with opened(browser, reports[name].path) as visit:
        for scheme in SCHEMES:
            visit.page.emulate_media(color_scheme=scheme)
            paper = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (_luminance(paper) < 0.5) == (scheme == "dark")
            pairs = {(text["ink"], text["paper"]): text["text"] for text in visit.page.evaluate(TEXTS)}
            assert len(pairs) > 5
            ratios = {text: round(contrast(*pair), 2) for pair, text in pairs.items()}
            assert {text: ratio for text, ratio in ratios.items() if ratio < LEAST_CONTRAST} == {}
