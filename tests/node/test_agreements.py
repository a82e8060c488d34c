"""A site agrees to a study and to the code that it runs: changed code is asked about again, and the ledger has both."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node import desk
from node.agreements import LISTED_IN_FILE, Agreements
from node.approvals import Approval, Approvals
from node.config import NodeFile
from node.service import Node
from node.training.jobs import Job
from node.training.trainer import Trainer
from node.training.worker import WorkerProcess
from secure_fl.errors import CodeChangedError, RefusedError
from secure_fl.privacy.accountant import SiteAccountant
from secure_fl.privacy.decisions import this_user
from secure_fl.privacy.ledger import Entry, Ledger, read_site_ledger
from secure_fl.rounds import RoundKind
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from secure_fl.tasks.package_digest import package_sha256
from tests.attacks.test_attacks import INITIAL, EvilCoordinator, _Fixed
from tests.node.test_privacy import edited
from tests.support.budgets import PRIVACY
from tests.support.federation import Federation

OLD, NEW = {"code": "aa" * 32}, {"code": "bb" * 32}
TASK = """
import torch
from torch import nn
from collections import OrderedDict
from secure_fl.tasks.base import LocalData, Split, Task


class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return (x @ self.w)[:, None]


class Tiny(Task):
    kind = "regression"
    preprocessing = "none"

    def model(self):
        return nn.Sequential(OrderedDict(features=Weights()))

    def load(self, source):
        x = torch.randn(60, 3, generator=torch.Generator().manual_seed(1))
        split = Split(inputs=x, targets=x.sum(1, keepdim=True) * {factor})
        return LocalData(train=split, test=split)
"""


class Desk:
    """One site whose approvals and ledger are on disk."""

    def __init__(self, folder: Path, **policy: Any) -> None:
        study = Study.parse({"simulation": {"nodes": 3}, "privacy": PRIVACY})
        self.made: Workspace = prepare(folder / "run", study, policy={})
        self.made.point_nodes_at(1)
        self.file = edited(self.made, "policy", **{"approve": "ask", "approved": [], **policy})
        self.study = self.made.study
        self.approvals = Approvals(self.file.state_folder)

    def agreements(self) -> Agreements:
        """As after a start."""
        credential, path = self.file.credential(), self.file.state_folder / "ledger.jsonl"
        authority = self.file.ca_pem()
        ledger = Ledger(
            path, certificate=credential.certificate, key=credential.signing_key, authority=authority
        )  # fmt: skip
        return Agreements(self.file, self.approvals, SiteAccountant(ledger, self.entries))

    @property
    def entries(self) -> tuple[Entry, ...]:
        path = self.file.state_folder / "ledger.jsonl"
        return read_site_ledger(path, authority=self.file.ca_pem(), site="site-01")

    def told(self, kind: str) -> list[Any]:
        return [entry.facts for entry in self.entries if entry.kind == kind]


def test_the_ledger_says_who_agreed_to_what_at_which_price_once(tmp_path: Path) -> None:
    site = Desk(tmp_path)
    site.approvals.add(site.study.id, Approval(by="ada", code=OLD["code"]))
    for _ in range(2):  # and over a restart
        agreements = site.agreements()
        agreements.require(site.study, OLD, number=1)
        agreements.require(site.study, OLD, number=2)
    (facts,) = site.told("approved")
    assert facts["by"] == "ada"
    assert facts["study"] == site.study.id
    assert facts["code"] == OLD["code"]
    assert facts["epsilon"] == PRIVACY["epsilon"]
    assert facts["dataset"] == "digits"


def test_changed_code_is_refused_until_it_is_approved_and_both_are_in_the_ledger(tmp_path: Path) -> None:
    site = Desk(tmp_path)
    site.approvals.add(site.study.id, Approval(by="ada", code=OLD["code"]))
    site.agreements().require(site.study, OLD, number=1)
    for _ in range(3):  # with a restart before each: a ledger has one writer at a time
        with pytest.raises(RefusedError, match="the code of task 'digits' is another") as caught:
            site.agreements().require(site.study, NEW, number=2)
        assert "`secure-fl node approve`" in (caught.value.hint or "")
    site.approvals.add(site.study.id, Approval(by="bob", code=NEW["code"]))
    site.agreements().require(site.study, NEW, number=2)
    assert [(f["by"], f["code"]) for f in site.told("approved")] == [("ada", OLD["code"]), ("bob", NEW["code"])]
    assert site.told("refused") == [{"study": site.study.id, "round": 2, "reason": "Refused"}]


def test_where_only_the_file_counts_an_approval_by_hand_decides_nothing(tmp_path: Path) -> None:
    site = Desk(tmp_path)
    site.approvals.add(site.study.id, Approval(by="ada", code=OLD["code"]))
    site.file = edited(site.made, "policy", approve="listed", approved=[site.study.id])
    # `node approve` says no here, so that nobody could ever agree to the new code.
    site.agreements().require(site.study, NEW, number=1)
    (facts,) = site.told("approved")
    assert (facts["by"], facts["code"]) == (LISTED_IN_FILE, NEW["code"])


MARK = "\nfrom pathlib import Path\nPath(__file__).with_name('ran-{factor}').touch()\n"


def write_task(folder: Path, factor: int) -> None:
    (folder / "changing_task.py").write_text((TASK + MARK).replace("{factor}", str(factor)))


def test_a_node_sits_out_when_its_tasks_code_changed_and_comes_back_when_it_is_approved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_task(tmp_path, 1)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    settings = {"study": {"rounds": 3, "initial": INITIAL}, "task": {"name": "changing_task:Tiny"}}

    async def run() -> tuple[Federation, list[int]]:
        fed = Federation(tmp_path / "run", settings)
        fed.set_policy("site-01", approve="ask", approved=[])
        path = fed.workspace.node_file("site-01")
        approve = ["approve", str(path), str(fed.workspace.folder / "study.toml")]
        assert desk.main(approve) == 0
        evil, uploads = EvilCoordinator(fed), []
        for life in range(2):
            file = NodeFile.read(path)
            task = asyncio.create_task(Node(file, _Fixed(evil, file), WorkerProcess()).run())
            assert (await asyncio.wait_for(evil.said.get(), 5)).study_answer.accepted
            number, attempt = 1 + life, 1
            if life == 1:
                evil.announce(number=number, attempt=attempt, deadline_ms=30_000)
                assert (await asyncio.wait_for(evil.said.get(), 30)).sit_out.reason == "Refused"
                assert not (tmp_path / "ran-2").exists()  # Nothing of it was imported.
                assert desk.main(approve) == 0
                attempt = 2
            evil.announce(number=number, attempt=attempt, deadline_ms=30_000)
            for _ in range(600):
                if len(evil.uploads) > life:
                    break
                assert evil.said.empty(), evil.said.get_nowait()
                await asyncio.sleep(0.05)
            uploads.append(len(evil.uploads))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            write_task(tmp_path, 2)
        return fed, uploads

    fed, uploads = asyncio.run(run())
    assert uploads == [1, 2]
    assert "the task's code in the package of 'changing_task:Tiny' changed since" in caplog.text
    assert "approve the study again" in caplog.text
    file = NodeFile.read(fed.workspace.node_file("site-01"))
    entries = read_site_ledger(file.state_folder / "ledger.jsonl", authority=file.ca_pem(), site="site-01")
    kinds = [entry.kind for entry in entries]
    assert kinds == ["opened", "approved", "planned", "sent", "refused", "approved", "planned", "sent"]
    first, second = (entry.facts for entry in entries if entry.kind == "approved")
    assert first["study"] == second["study"] == fed.study.id
    assert first["by"] == second["by"] == this_user()
    assert first["code"] != second["code"]
    assert first["epsilon"] is None  # The study has no noise: nothing bounds what it costs.


def test_a_process_says_which_code_it_has_loaded_and_not_what_lies_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path, 1)
    (tmp_path / "changing_task.py").rename(tmp_path / "loaded_task.py")
    monkeypatch.syspath_prepend(tmp_path)
    jobs = []
    for name in ("one", "two"):  # two studies, offered one after the other
        study = Study.parse(
            {"study": {"name": name, "initial": INITIAL}, "task": {"name": "loaded_task:Tiny"}}
        )  # fmt: skip
        (tmp_path / f"{name}.json").write_bytes(study.canonical())
        jobs.append(_rehearsal(tmp_path / f"{name}.json"))
    trainer = Trainer()
    before = trainer.execute(jobs[0]).found["code"]
    (tmp_path / "loaded_task.py").write_text(TASK.replace("{factor}", "2"))
    assert trainer.execute(jobs[1]).found["code"] == before


# --- a package is compared before it is imported ----------------------------------------------------------------------

PACKAGED = "packaged_task.inner.tasks:Tiny"


def write_package(folder: Path, factor: int) -> None:
    """A task two folders down: each of them runs when it is imported."""
    inner = folder / "packaged_task" / "inner"
    inner.mkdir(parents=True, exist_ok=True)
    (inner.parent / "__init__.py").write_text(MARK.replace("{factor}", f"outer-{factor}"))
    (inner / "__init__.py").write_text("")
    (inner / "tasks.py").write_text((TASK + MARK).replace("{factor}", str(factor)))


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job for a task in a package, with the digest that was approved; the package is another one by now."""
    monkeypatch.syspath_prepend(tmp_path)
    write_package(tmp_path, 1)
    study = Study.parse({"study": {"initial": INITIAL}, "task": {"name": PACKAGED}})
    (tmp_path / "study.json").write_bytes(study.canonical())
    approved = package_sha256(PACKAGED)
    assert len(approved) == 64
    write_package(tmp_path, 2)
    yield replace(_rehearsal(tmp_path / "study.json"), package_sha256=approved)
    for name in [name for name in sys.modules if name.partition(".")[0] == "packaged_task"]:
        del sys.modules[name]


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("ran-*"))


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
def test_a_package_that_changed_since_it_was_approved_does_not_run(
    tmp_path: Path, packaged: Job, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    if checked:
        with pytest.raises(CodeChangedError, match="changed since 'study' was approved here") as caught:
            Trainer().execute(packaged)
        assert "`secure-fl node approve`" in (caught.value.hint or "")
        assert marks(tmp_path) == []
    else:
        monkeypatch.setattr("node.training.trainer.require_package", lambda *_, **__: None)
        Trainer().execute(packaged)
        assert marks(tmp_path) == ["ran-2", "ran-outer-2"]


def test_a_package_that_is_as_it_was_approved_runs_and_what_is_loaded_goes_on(tmp_path: Path, packaged: Job) -> None:
    write_package(tmp_path, 1)
    cached = tmp_path / "packaged_task" / "__pycache__"
    cached.mkdir()
    (cached / "other.cpython-311.pyc").write_bytes(b"as Python leaves it")
    code = Trainer().execute(packaged).found["code"]
    write_package(tmp_path, 2)
    assert Trainer().execute(packaged).found["code"] == code


def test_every_importable_file_of_a_package_counts_and_secure_fl_itself_does_not(tmp_path: Path, packaged: Job) -> None:
    write_package(tmp_path, 1)
    assert package_sha256(PACKAGED) == packaged.package_sha256
    (tmp_path / "packaged_task" / "more.pyc").write_bytes(b"a module without its source")
    assert package_sha256(PACKAGED) != packaged.package_sha256
    assert marks(tmp_path) == []
    assert package_sha256("digits") == package_sha256("secure_fl.tasks.digits:Digits") == ""
    assert package_sha256("nowhere_at_all:Task") == package_sha256("sys:Task") == ""


def _rehearsal(study: Path) -> Job:
    return Job(
        kind=RoundKind.TRAIN, study=str(study), round=1, attempt=1, me="site-01", seed=1, dataset={},
        folder=str(study.parent), device="cpu", threads=1, layout=[["features", [["w", [3]]]]], received="",
        personal="", combination="", state="", update_to="", features_to="", personal_to="", state_to="", model_to="",
        rehearsal=True,
    )  # fmt: skip


def test_training_by_other_code_than_was_tried_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_task(tmp_path, 1)
    (tmp_path / "changing_task.py").rename(tmp_path / "swapped_task.py")
    monkeypatch.syspath_prepend(tmp_path)
    study = Study.parse({"study": {"initial": INITIAL}, "task": {"name": "swapped_task:Tiny"}})
    (tmp_path / "study.json").write_bytes(study.canonical())
    (tmp_path / "received.bin").write_bytes(bytes(12))
    job = replace(
        _rehearsal(tmp_path / "study.json"),
        rehearsal=False,
        received=str(tmp_path / "received.bin"),
        update_to=str(tmp_path / "update.safetensors"),
    )
    with pytest.raises(RefusedError, match="changed between"):
        Trainer().execute(replace(job, code=OLD["code"]))
    assert not (tmp_path / "update.safetensors").exists()
    Trainer().execute(job)
    assert (tmp_path / "update.safetensors").exists()
