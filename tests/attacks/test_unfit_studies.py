"""Studies whose parts do not fit together, offered all the same by a coordinator and a lead that cheat.

`study check` refuses each of them. A site's promises must not depend on somebody else having looked.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from coordinator.machine import RoundMachine
from node import desk
from node.config import NodeFile
from node.service import Node
from node.training.jobs import Job, Result, layout_from_json
from secure_fl.checkpoints import save_arrays
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.errors import ProtectionError, SettingsError
from secure_fl.protect.contract import Message, OpenedSums
from secure_fl.protect.masked import protection as masked
from secure_fl.protect.masked.protection import Masked
from secure_fl.protect.past import CHANGING_COHORTS
from secure_fl.protect.recovery.protection import MaskedWithRecovery
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.settings import read_toml
from secure_fl.study.context import round_context
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from secure_fl.transport.wire import reference
from tests.attacks.test_attacks import INITIAL, LAYOUT, EvilCoordinator, _Fixed
from tests.protect.cohorts import InMemory, context, contribution, host
from tests.support.budgets import PRIVACY
from tests.support.federation import Federation
from tests.support.training import FakeTraining

SITE = "site-01"
BY_SITES = {"mode": "buffered", "unit": "site", "merge": "delta", "staleness": 20}
MASKED = {"kind": "masked", "recovery": False}

# By what each would give away, or make nonsense of.
UNFIT: dict[str, dict[str, Any]] = {
    "versions that nobody compares": {"rounds": BY_SITES, "protection": MASKED},
    "weights by records under noise": {
        "privacy": PRIVACY,
        "metrics": {"share": "none"},
        "protection": {**MASKED, "reference_samples": 500},
    },
    "a kind of noise that is not built": {
        "privacy": {**PRIVACY, "mode": "distributed"},
        "metrics": {"share": "none"},
        "protection": MASKED,
    },
    "a delta that promises nothing": {
        "privacy": {**PRIVACY, "delta": 0.5},
        "metrics": {"share": "none"},
        "protection": MASKED,
    },
    "single sites beside circles": {
        "rounds": {"mode": "buffered"},
        "protection": {"kind": "masked", "recovery": True},
    },
    "asks circles where there are none": {
        "strategy": {"name": "aifed", "gating": "public"},
        "rounds": {"mode": "sync"},
        "protection": {"kind": "masked", "recovery": True},
    },
    "mixtures of a protection for sums": {"strategy": {"name": "fedamp"}, "protection": MASKED},
}
unfit = pytest.mark.parametrize("settings", UNFIT.values(), ids=UNFIT)


def unchecked(_study: Study, *, nodes: int | None = None) -> int:
    """`Study.check_parts`, taken out."""
    return nodes or 0


def federation(folder: Path, settings: dict[str, Any], *, rounds: int = 2) -> Federation:
    """Four sites that agree to changing cohorts, for some other study of theirs."""
    fed = Federation(folder, {"study": {"rounds": rounds, "initial": INITIAL}, **settings})
    for name in fed.names:
        fed.set_policy(name, exceptions=[CHANGING_COHORTS])
    return fed


async def _offered(fed: Federation) -> pb.StudyAnswer:
    evil = EvilCoordinator(fed)
    file = NodeFile.read(fed.workspace.node_file(SITE))
    node = Node(file, _Fixed(evil, file), FakeTraining())
    task = asyncio.create_task(node.run())
    try:
        return (await asyncio.wait_for(evil.said.get(), 30)).study_answer
    finally:
        node.stop()
        await asyncio.gather(task, return_exceptions=True)


@unfit
def test_a_site_takes_no_part_whoever_offers_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    fed = federation(tmp_path / "run", settings)
    with pytest.raises(SettingsError):
        fed.study.check_parts()
    answer = asyncio.run(_offered(fed))
    assert (answer.accepted, answer.refusal) == (False, SettingsError.code)
    # Nothing is kept of it as of a study that this site is in.
    state = NodeFile.read(fed.workspace.node_file(SITE)).state_folder
    assert not list((state / "studies").glob("*/study.json"))


def test_without_the_check_a_site_would_take_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation(tmp_path / "run", UNFIT["versions that nobody compares"])
    monkeypatch.setattr(Study, "check_parts", unchecked)
    assert asyncio.run(_offered(fed)).accepted


@unfit
def test_nor_does_its_operator_approve_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any]
) -> None:
    fed = Federation(tmp_path / "run", {"task": {"name": "breast-cancer"}, **settings})
    path = fed.workspace.node_file(SITE)
    table = read_toml(path)
    table["policy"].update(approve="ask", approved=[], exceptions=[CHANGING_COHORTS])
    table["datasets"]["breast-cancer"] = {"units": 300}
    path.write_bytes(tomli_w.dumps(table).encode())
    file = tmp_path / "study.toml"
    file.write_bytes(tomli_w.dumps(fed.study.to_table()).encode())
    assert desk.main(["approve", str(path), str(file)]) == SettingsError.exit_code
    said = capsys.readouterr()
    assert "approved" not in said.out
    assert said.err.startswith("node: ")


# --- what it would give away ----------------------------------------------------------------------------------

FIRST = np.array([1, 1, 1], "<f4").tobytes()
CALM = np.array([0, 0, 0], "<f4").tobytes()  # one clip away: sites learn nothing from it
NEXT = np.array([0.5, 0.5, 0.5], "<f4").tobytes()
SECRET = {f"site-{n:02d}": np.array([0.1 * n, -0.05 * n, 0.2], "<f4") for n in range(1, 5)}
VICTIM = "site-03"


def learn(job: Job) -> None:
    """An update that is each site's own, and vanishes where there is nothing to learn."""
    received = layout_from_json(job.layout).unflatten(Path(job.received).read_bytes())
    save_arrays(Path(job.update_to), {n: (SECRET[job.me] * v).astype("<f4") for n, v in received.items()})


class Learning(FakeTraining):
    """A site's training."""

    async def run(self, job: Job) -> Result:
        learn(job)
        return Result(samples=100, metrics=SiteMetrics(samples=100, accuracy=0.5, loss=1.0))


class Evil(EvilCoordinator):
    """One site's line."""

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        self.got: asyncio.Queue[tuple[pb.UploadHeader, bytes]] = asyncio.Queue()

    async def upload(self, peer: Any, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        collected = [part async for part in parts]
        header = collected[0].header
        self.got.put_nowait((header, b"".join(part.chunk.data for part in collected[1:])))
        return pb.UploadReceipt(study_id=self.fed.study.id, upload_id=header.upload_id)

    def ask(self, number: int, weights: bytes, phase: str, message: Message) -> None:
        """A phase of a flush from this model."""
        payload = pb.Payload(protection="masked", phase=phase, version=Masked.payload_version, body=message.body)
        changes: dict[str, Any] = {"phase": phase, "payload": payload}
        self.announce(number=number, weights=weights, first=FIRST, version=number - 1, **changes)
        if message.bulk:
            said = self.outbox.get_nowait()
            self.models[reference(bytes(message.bulk)).sha256] = bytes(message.bulk)
            said.announcement.bulk.CopyFrom(reference(bytes(message.bulk)))
            self.outbox.put_nowait(said)


async def _two_histories(fed: Federation) -> OpenedSums | str:
    """What is opened of work that one site made from a model of its own, or why a site refuses."""
    evils, tasks = {name: Evil(fed) for name in fed.names}, []
    for name, evil in evils.items():
        file = NodeFile.read(fed.workspace.node_file(name))
        tasks.append(asyncio.create_task(Node(file, _Fixed(evil, file), Learning()).run()))
    try:
        for evil in evils.values():
            assert (await evil.said.get()).study_answer.accepted
        # The second flush: everybody but the victim is shown a version from which there is nothing to learn.
        for name, evil in evils.items():
            evil.ask(2, FIRST if name == VICTIM else CALM, "advertise", Message())
        for evil in evils.values():
            if isinstance(said := await _first(evil), str):
                return said
        # It comes to nothing. The third has one version for all, and what is waiting at the sites enters it.
        digest = LAYOUT.digest(LAYOUT.unflatten(NEXT))
        resolved = ResolvedStudy.of(fed.study)
        about = round_context(
            resolved, number=3, attempt=1, kind=RoundKind.TRAIN, base_model=digest, invited=fed.names, shared=LAYOUT
        )
        machine = RoundMachine(resolved.protection, about)
        machine.begin()
        while True:
            for name in sorted(machine.asked):
                evils[name].ask(3, NEXT, machine.phase, machine.asked[name])
            for name in sorted(machine.asked):
                if isinstance(said := await _first(evils[name]), str):
                    return said
                header, bulk = said
                machine.accept(name, machine.phase, Message(body=header.payload.body), InMemory(bulk))
            if (opened := machine.close()) is not None:
                assert isinstance(opened, OpenedSums)
                return opened
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _first(evil: Evil) -> tuple[pb.UploadHeader, bytes] | str:
    """An answer, or the code by which the site refuses."""
    said, got = asyncio.ensure_future(evil.answer()), asyncio.ensure_future(evil.got.get())
    try:
        await asyncio.wait({said, got}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        return got.result() if got.done() else said.result()
    finally:
        said.cancel()
        got.cancel()


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the checks"])
def test_one_sites_update_would_be_opened_where_nobody_compares_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Even if the study's parts were not looked at, masks within a circle are not made for work of several versions."""
    first = LAYOUT.digest(LAYOUT.unflatten(FIRST)).hex()
    settings = {**UNFIT["versions that nobody compares"], "study": {"rounds": 6, "initial": first}}
    fed = Federation(tmp_path / "run", settings)
    for name in fed.names:
        fed.set_policy(name, exceptions=[CHANGING_COHORTS])
    assert not fed.study.exceptions  # the study asks for none
    monkeypatch.setattr(Study, "check_parts", unchecked)
    if not checked:
        monkeypatch.setattr(masked, "_require_circle", lambda _context: None)
    found = asyncio.run(asyncio.wait_for(_two_histories(fed), 150))
    if checked:
        assert found == ProtectionError.code
        return
    assert isinstance(found, OpenedSums)
    total = np.array([float(value) for value in found.blocks["features"].total])
    update = SECRET[VICTIM]
    assert total @ update / np.linalg.norm(total) / np.linalg.norm(update) > 0.9999


@pytest.mark.parametrize("protection", [Masked(), MaskedWithRecovery()], ids=["circles", "recovery"])
def test_a_protection_that_compares_no_versions_takes_no_part_in_flushes_of_single_sites(
    protection: Masked | MaskedWithRecovery,
) -> None:
    about = context("a", "b", "c", "d", protection=protection, whole=isinstance(protection, Masked))
    given, mine = contribution(64, body=[1, 2, 3], head=[4, 5]), host("a")
    protection.node(about, given, mine)
    with pytest.raises(ProtectionError, match="one version of the model"):
        protection.node(dataclasses.replace(about, version=5, staleness=3), given, mine)
