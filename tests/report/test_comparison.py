"""The page and the files of a comparison: every strategy has its line, its row and its dot, in the same bytes."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from secure_fl.report.comparison import drawings, render
from secure_fl.report.drawing import log_axis
from secure_fl.report.scatter import Points
from secure_fl.report.text import decimal
from tests.report.test_report import HOSTILE, Page, rows

SVG = "{http://www.w3.org/2000/svg}"


def result(
    *strategies: str, protections: tuple[str, ...] = ("masked",), measure: str = "accuracy", seeds: int = 2
) -> dict[str, Any]:
    """What `bench strategies --json` prints, with plausible figures: errors halve from strategy to strategy."""
    made = []
    for index, name in enumerate(strategies):
        for protection in protections:
            final = 0.9 - 0.05 * index if measure == "accuracy" else 0.4 / 2.5**index
            known = {measure: final, f"{measure}_std": 0.02 * final if seeds > 1 else None}
            unknown = dict.fromkeys(
                ("accuracy", "accuracy_std", "mse", "mse_std", "fairness_std", "worst_accuracy", "fairness_std_mse",
                 "worst_mse", "rounds_to_target", "bytes_to_target")
            )  # fmt: skip
            nodes = [
                {
                    "seed": seed,
                    "name": f"site-{at}",
                    "samples": 5 if at == 2 else 100,
                    "accuracy": None,
                    "mse": None,
                    "depth": None,
                }
                | {measure: final * (1 - 0.1 * at)}
                for seed in range(seeds)
                for at in range(3)
            ]
            curve = [
                {
                    "round": at,
                    **unknown,
                    measure: final * (0.2 + 0.2 * at),
                    f"{measure}_std": 0.02 if seeds > 1 else None,
                }
                for at in range(5)
            ]
            groups = [
                {"samples": (low, low), "nodes": nodes_of_it, **unknown, **known}
                for low, nodes_of_it in ((5, seeds), (100, 2 * seeds))
            ]
            made.append(
                {"strategy": name, "protection": protection, **unknown, **known, "curve": curve, "combined": None,
                 "seconds": 1.0 * seeds * (1 + protections.index(protection)),
                 "bytes_up_per_node_round": 1e4 * 3**index, "bytes_up_per_node": 4e4 * 3**index, "groups": groups,
                 "nodes": nodes}
            )  # fmt: skip
    common = {"task": "sine", "partition": "natural", "nodes": 3, "rounds": 4, "seeds": list(range(seeds))}
    return {**common, "target": None, "results": made}


def parsed(values: dict[str, Any]) -> dict[str, ET.Element]:
    return {name: ET.fromstring(text) for name, text in drawings(values).items()}  # noqa: S314


@pytest.mark.parametrize("measure", ["accuracy", "mse"])
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("names", [("local",), ("local", "fedavg", "pflda"), tuple(f"s{at}" for at in range(16))])
def test_every_strategy_is_in_every_chart(measure: str, seeds: int, names: tuple[str, ...]) -> None:
    values = result(*names, measure=measure, seeds=seeds)
    charts = parsed(values)
    assert list(charts) == ["rounds.svg", "sites.svg", "bytes.svg"]
    lines = [group for group in charts["rounds.svg"].iter(f"{SVG}g") if "line" in group.get("class", "")]
    assert [len(group.findall(f"{SVG}path")) for group in lines] == [1] * len(names)
    assert len(list(charts["rounds.svg"].iter(f"{SVG}polygon"))) == (len(names) if seeds > 1 else 0)
    sites = list(charts["sites.svg"].iter(f"{SVG}g"))
    assert [len(group.findall(f"{SVG}circle")) for group in sites] == [3 * seeds] * len(names)
    assert len(list(charts["bytes.svg"].iter(f"{SVG}circle"))) == len(names)
    for chart in charts.values():
        told = [text.findtext(f"{SVG}title") for text in chart.iter(f"{SVG}text") if "name" in text.get("class", "")]
        assert sorted(filter(None, told)) == sorted(names)
        assert all(name in chart.get("aria-label", "") for name in names)
        # A file that needs nothing around it: its own style for light and dark, and its own paper.
        assert "prefers-color-scheme:dark" in (chart.findtext(f"{SVG}style") or "")
        assert chart.find(f"{SVG}rect[@class='paper']") is not None
        width, height = float(chart.get("width", "")), float(chart.get("height", ""))
        for text in chart.iter(f"{SVG}text"):
            assert 0 <= float(text.get("x", "")) <= width
            assert 0 <= float(text.get("y", "")) <= height


def test_colours_are_the_strategies_and_dashes_the_protections() -> None:
    chart = parsed(result("local", "fedavg", protections=("none", "masked")))["rounds.svg"]
    lines = [group for group in chart.iter(f"{SVG}g") if "line" in group.get("class", "")]
    assert [group.get("class") for group in lines] == [
        "line many s0", "line many s0 d1", "line many s1", "line many s1 d1",
    ]  # fmt: skip
    assert [(line.findtext(f"{SVG}title") or "").split(":")[0] for line in lines] == [
        "local, none", "local, masked", "fedavg, none", "fedavg, masked",
    ]  # fmt: skip


def test_errors_that_are_far_apart_are_drawn_by_their_logarithm() -> None:
    chart = parsed(result("a", "b", "c", "d", "e", measure="mse"))["rounds.svg"]
    ticks = [text.text for text in chart.iter(f"{SVG}text") if text.get("class") == "tick end"]
    assert ticks == ["0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5"]


@pytest.mark.parametrize("values", [(0.003, 0.03), (1.0, 1.0), (1e-9, 1e9), (0.2, 5.0), (7.0, 8.0)])
def test_a_logarithmic_axis_holds_its_values(values: tuple[float, ...]) -> None:
    axis = log_axis(values, 100, 0, text=decimal)
    assert all(0 <= axis.scale(value) <= 100 for value in values)
    assert 2 <= len(axis.ticks) <= 8
    assert axis.scale(0.0) == 100
    assert math.isclose(axis.scale(math.sqrt(axis.scale.low * axis.scale.high)), 50)


def test_the_page_is_inert_and_says_what_the_result_says() -> None:
    values = result("local", "pflda", measure="mse")
    page = render(values)
    parsed_page = Page(page)
    assert parsed_page.tags.isdisjoint({"script", "iframe", "object", "embed", "link", "img", "base", "form"})
    assert not re.search(r"https?://|@import|url\(|javascript:", page)
    assert rows(page, "Every strategy")[1] == [
        "pflda",
        "masked",
        "0.16 ± 0.0032",
        "–",
        "–",
        "30 kB",
        "120 kB",
        "1.00 s",
    ]
    assert rows(page, "By number of samples")[0] == ["local", "masked", "5", "2", "0.4 ± 0.008"]
    assert "Task sine Partition natural Sites 3 Rounds 4 Seeds 0, 1" in parsed_page.text


def test_the_price_of_a_protection_stands_beside_none() -> None:
    values = result("local", "fedavg", protections=("masked", "none"))
    values["results"][2]["accuracy"] += 0.01
    values["results"][2]["bytes_up_per_node"] *= 2
    table = rows(render(values), "Beside none")
    assert table == [
        ["local", "masked", "+0.0000", "1.00 ×", "0.50 ×"],
        ["fedavg", "masked", "+0.0100", "2.00 ×", "0.50 ×"],
    ]
    assert "Beside none" not in render(result("local", protections=("masked", "sealed")))


def test_depths_and_combinations_are_shown_where_there_are_any() -> None:
    values = result("fedavg", "fedasa")
    assert "Shared depth" not in render(values)
    for node in values["results"][1]["nodes"]:
        node["depth"] = node["seed"] + int(node["name"][-1])
    values["results"][0]["combined"] = 0.25
    page = render(values)
    assert rows(page, "Cells shared") == [["site-0", "0, 1"], ["site-1", "1, 2"], ["site-2", "2, 3"]]
    assert [row[-1] for row in rows(page, "Every strategy")] == ["25.0%", "–"]


def test_shared_features_are_drawn_row_by_row() -> None:
    points = Points(
        places=((0.0, 1.0), (2.0, -1.0), (0.5, 0.0)), classes=(3, 9, 3), sites=("a", "<b>", "a"), explained=0.5
    )
    values, features = result("local", "fedavg"), [None, points]
    files = drawings(values, features)
    assert sorted(files) == ["bytes.svg", "features-fedavg-masked.svg", "rounds.svg", "sites.svg"]
    chart = ET.fromstring(files["features-fedavg-masked.svg"])  # noqa: S314
    told = [(text.text or text[0].tail, text.findtext(f"{SVG}title")) for text in chart.iter(f"{SVG}text")]
    assert told[:3] == [("3", "a, class 3"), ("9", "<b>, class 9"), ("3", "a, class 3")]
    assert told[3][0] == "50.0% of the variance"
    page = render(values, features)
    assert page.count("&lt;b&gt;, class 9") == 2  # wide and narrow
    assert "Shared features" not in render(values)


def test_the_same_result_gives_the_same_bytes() -> None:
    assert render(result("a", "b")) == render(result("a", "b"))
    assert drawings(result("a", "b")) == drawings(result("a", "b"))


def test_names_from_outside_stay_text() -> None:
    values = result(HOSTILE, "b")
    assert "script" not in Page(render(values)).tags
    assert parsed(values)


def test_what_was_not_measured_is_not_drawn() -> None:
    values = result("local", "fedavg")
    nothing = {"accuracy": None, "accuracy_std": None}
    values["results"][1] |= nothing
    assert len(list(parsed(values)["bytes.svg"].iter(f"{SVG}circle"))) == 1
    values["results"][0] |= nothing
    assert drawings(values) == {}
    assert "Every strategy" in render(values)
