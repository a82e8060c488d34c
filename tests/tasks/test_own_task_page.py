"""docs/tasks.md, "A task of your own", carried out as written: the package is at the lead and the sites alone.

Every test run goes as far as the installed package. `pytest -m slow` carries out the whole section.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from secure_fl.identity.authority import Authority
from secure_fl.privacy.ledger import read_ledger
from tests.support.page import Fence, Machines, fences, missing_links
from tests.support.processes import ROOT, free_port

DOCS = ROOT / "docs"
PAGE = (DOCS / "tasks.md").read_text(encoding="utf-8")
SITES = ("hospital-a", "hospital-b", "hospital-c")
PACKAGES = "packages"  # of a machine: where its pip installs


class Laptops(Machines):
    """Each machine has packages of its own."""

    def _start(self, site: str, script: str, output: int) -> subprocess.Popen[bytes]:
        packages = self.folder / site / PACKAGES
        here = {
            "PYTHONPATH": f"{packages}{os.pathsep}{ROOT}",
            "PIP_TARGET": str(packages),
            # What is needed to build is in this environment; nothing is fetched.
            "PIP_NO_BUILD_ISOLATION": "false",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        script = "".join(f"export {name}={value!r}\n" for name, value in here.items()) + script
        return super()._start(site, script, output)


def set_up(folder: Path) -> None:
    """A consortium, as docs/operations.md leaves it: everybody has keys and a file."""
    address = f"127.0.0.1:{free_port()}"
    authority = Authority.create(folder / "authority", consortium="test")
    for name in ("hub", "lead", *SITES):
        (folder / name).mkdir()
        for file in ("ca.pem", "crl.pem"):
            (folder / name / file).write_bytes((folder / "authority" / file).read_bytes())
    hub = authority.issue("coordinator", "hub", hosts=("127.0.0.1",))
    hub.save(folder / "hub")
    section = {"address": address, "certificate": "coordinator-hub.pem"}
    write(folder / "hub" / "coordinator.toml", {"coordinator": section, "monitoring": {"address": ""}})
    dialing = {"coordinator": address, "fingerprint": hub.certificate.fingerprint}
    authority.issue("operator", "lead").save(folder / "lead")
    write(folder / "lead" / "operator.toml", {"operator": {**dialing, "certificate": "operator-lead.pem"}})
    roster = {}
    for site in SITES:
        mine = authority.issue("node", site)
        mine.save(folder / site)
        roster[site] = mine.certificate.fingerprint
        section = {**dialing, "name": site, "certificate": f"node-{site}.pem"}
        write(folder / site / "node.toml", {"node": {**section, "threads": 1}})
    write(folder / "lead" / "roster.toml", {"study": {"roster": roster}})


def write(path: Path, table: Mapping[str, object]) -> None:
    path.write_bytes(tomli_w.dumps(table).encode())


# A study among parties. Every test run carries out the same commands of docs/operations.md.
STUDY = ("secure-fl coordinator ", "secure-fl node ", "secure-fl study ")
AT_A_SITE = "secure-fl task check wards --data rows.csv"


def up_to_the_study() -> Iterator[Fence]:
    """The section's fences without such lines, at one site, and with a smaller run."""
    for fence in fences(PAGE):
        lines = [line for line in fence.text.splitlines() if not line.startswith(STUDY)]
        if lines:
            text = "\n".join(lines).replace("--nodes 5 --rounds 5", "--nodes 3 --rounds 1 --engine threads")
            yield replace(fence, text=text, sites=fence.sites[:1])


def test_up_to_the_study_it_is_carried_out(tmp_path: Path) -> None:
    set_up(tmp_path)
    with Laptops(tmp_path, addresses={}) as machines:
        todo = list(up_to_the_study())
        said = "".join([machines.carry_out(fence) for fence in todo])
        assert "--engine threads" in "".join(fence.text for fence in todo)
        assert f"`{AT_A_SITE}`" in PAGE
        said += machines.until([SITES[0]], AT_A_SITE)
        # The code that a site would approve, from a package, is the one that the lead wrote and checked, in a file.
        digests = re.findall(r"source sha256:(\w{64})", said)
        assert len(digests) == 2
        assert len(set(digests)) == 1


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_section_is_carried_out_as_written(tmp_path: Path) -> None:
    set_up(tmp_path)
    with Laptops(tmp_path, addresses={}) as machines:
        said = "".join([machines.carry_out(fence) for fence in fences(PAGE)])
        # The code that sites approved, from a package, is the one that the lead wrote and checked, in a file.
        digests = re.findall(
            r"(\(not installed as a package\)|task wards: wards 0\.1\.0), source sha256:(\w{64})", said
        )
        assert len(digests) == 1 + len(SITES)
        assert len({digest for _, digest in digests}) == 1
        status = json.loads(machines.until(["lead"], "secure-fl study status wards --json"))[0]
        last = status["record"]["rounds"][-1]
        assert [node["outcome"] for node in last["nodes"]] == ["took part"] * 3
        assert status["record"]["parameters"] == 82
        assert last["metrics"]["auc"] > 0.5
        # The coordinator has neither the task nor torch, and has not looked for them.
        assert not (tmp_path / "hub" / PACKAGES).exists()
        (pid,) = [child.pid for site, child in machines.running.items() if site == "hub"]
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
        for site in SITES:
            kinds = [entry.kind for entry in read_ledger(tmp_path / site / "state" / "ledger.jsonl")]
            assert kinds.count("sent") == 4
        assert set(machines.stop().values()) == {0}


def test_its_links_lead_somewhere() -> None:
    assert missing_links(DOCS / "tasks.md") == []


def test_what_it_says_of_the_new_task_is_so(tmp_path: Path) -> None:
    from secure_fl.cli.task_template import write_task

    files = write_task("wards", tmp_path / "wards", kind="classification")
    assert [file.name for file in files] == ["pyproject.toml", "wards.py", "test_wards.py"]
    assert len(files[1].read_text().splitlines()) < 30
    assert "wards" not in sys.modules
