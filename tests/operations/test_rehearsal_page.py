"""docs/rehearsal.md: its commands exist, and what it says of sites is what the product says."""

from __future__ import annotations

import re
import shlex
from typing import Any

import typer

from secure_fl.cli import app
from tests.operations.test_operations_page import product_text
from tests.support.page import links, missing_links
from tests.support.processes import ROOT

PATH = ROOT / "docs" / "rehearsal.md"
PAGE = PATH.read_text(encoding="utf-8")


def test_every_command_of_the_page_exists_with_its_options() -> None:
    named = [*re.findall(r"^(secure-fl .+)$", PAGE, re.MULTILINE), *re.findall(r"`(secure-fl [^`]+)`", PAGE)]
    assert len(named) >= 8
    for line in named:
        command: Any = typer.main.get_command(app)
        for word in shlex.split(line)[1:]:
            if hasattr(command, "commands"):
                command = command.commands[word]
            elif word.startswith("--"):
                options = {
                    name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
                }
                assert word in options, line


def test_what_it_says_of_a_site_is_what_status_says() -> None:
    source = product_text()
    table = PAGE.partition("| it says of a site |")[2].partition("More than these words")[0]
    sentences = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    assert len(sentences) >= 9
    for sentence in sentences:
        assert sentence.replace("…", "").strip() in source, sentence


def test_every_link_leads_somewhere() -> None:
    assert links(PATH)
    assert missing_links(PATH) == []
