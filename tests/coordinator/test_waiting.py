"""A study waits for a site that something is wrong with, and its lead sees who it is and why, as far as a site says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import node.repair
from coordinator.operations import Operations
from node.approvals import Approval, Approvals
from node.config import NodeFile
from node.link import GrpcConnector
from node.local import InlineExecutor
from node.service import Node
from node.training.jobs import Job
from secure_fl.errors import CertificateError, DataError
from secure_fl.operations.operator import connect
from secure_fl.operations.waiting import site_words, waiting_words
from secure_fl.results.record import StudyRecord
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.settings import read_toml
from tests.support.edge import Edge, at_the_edge, first_messages
from tests.support.federation import Federation
from tests.support.training import FakeTraining

CIRCLES: dict[str, Any] = {"protection": {"kind": "masked", "recovery": False}}
ROUNDS = {"rounds": {"deadline": 20, "phase_deadline": 20, "gather": 1, "attempts": 2}}

BUFFERED = {**CIRCLES, "rounds": {**ROUNDS["rounds"], "mode": "buffered"}}


def deployed(folder: Path, settings: dict[str, Any]) -> Federation:
    """Three sites where somebody may repair something: no simulation."""
    fed = Federation(folder / "run", {**ROUNDS, **settings}, nodes=3)
    for name in fed.names:
        change(fed, name, simulation=None)
    return fed


def change(fed: Federation, name: str, **sections: Any) -> None:
    path = fed.workspace.node_file(name)
    table = {**read_toml(path), **sections}
    path.write_bytes(tomli_w.dumps({key: value for key, value in table.items() if value is not None}).encode())


async def status(fed: Federation) -> pb.StudyStatus:
    """As the lead sees it."""
    if fed.coordinator is None:
        raise AssertionError("no coordinator")
    return await Operations(fed.coordinator)._status(fed.coordinator.runners[fed.study.id])


async def until(fed: Federation, words: str) -> pb.StudyStatus:
    """What the lead sees once it has these words in it."""
    for _ in range(400):
        if fed.coordinator is not None and fed.coordinator.runners:
            found = await status(fed)
            if any(words in line for line in waiting_words(found)):
                return found
        await asyncio.sleep(0.05)
    raise AssertionError(waiting_words(await status(fed)))


# --- data that do not work ----------------------------------------------------------------------------------------


def give(fed: Federation, name: str, trouble: str = "") -> None:
    path, rng = fed.workspace.node_file(name).parent / "data.npz", np.random.default_rng(1)
    x, y = rng.normal(size=(40, 30)).astype(np.float32), rng.integers(0, 2, 40)
    if trouble == "NaN":
        x[3, 4] = np.nan
    np.savez(path, x=x[:, :29] if trouble == "shape" else x, y=y)
    if trouble == "missing":
        path.unlink()


@pytest.mark.parametrize(
    ("trouble", "settings"),
    [("NaN", CIRCLES), ("shape", CIRCLES), ("missing", CIRCLES), ("NaN", {}), ("missing", BUFFERED)],
    ids=["NaN", "shape", "missing", "whoever is there", "buffered"],
)
def test_a_study_survives_bad_data_at_one_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(node.repair, "FIRST_PAUSE", 0.1)

    async def run() -> StudyRecord | None:
        fed = deployed(tmp_path, {"study": {"rounds": 1}, "task": {"name": "breast-cancer"}, **settings})
        for name in fed.names:
            change(fed, name, datasets={"breast-cancer": {"path": "data.npz"}})
            give(fed, name, trouble if name == "site-02" else "")
            fed.start_node(name, executor=InlineExecutor())
        study = asyncio.create_task(fed.coordinate())
        found = await until(fed, "waiting: 2 of 3 needed; site-02: its data, its disk or its software are not ready")
        assert [site_words(site) for site in found.sites if site.name != "site-02"] == ["", ""]
        # What is wrong is in the site's log alone: no other word of it reached the coordinator.
        assert found.sites[1].refusal == "NotReady"
        give(fed, "site-02")
        try:
            return await study
        finally:
            await fed.close()

    record = asyncio.run(asyncio.wait_for(run(), 60))
    assert record is not None
    assert [entry.cohort for entry in record.rounds] == [("site-01", "site-02", "site-03")] * 2


# --- reasons that are no fault of the data ------------------------------------------------------------------------


def test_a_site_that_has_not_approved_yet_is_named(tmp_path: Path) -> None:
    async def run() -> StudyRecord | None:
        fed = deployed(tmp_path, CIRCLES)
        fed.set_policy("site-03", approve="ask", approved=[])
        fed.set_policy("site-02", protections=["sealed"])
        for name in fed.names[1:]:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        found = await until(fed, "site-03: not approved there yet")
        assert waiting_words(found) == (
            "waiting: 0 of 3 needed; site-01: not connected; site-02: its policy does not allow the study (the site's "
            "log says which rule); site-03: not approved there yet (`secure-fl node approve`)",
        )
        study.cancel()
        await asyncio.gather(study, return_exceptions=True)
        await fed.close()
        return None

    asyncio.run(asyncio.wait_for(run(), 60))


class Coded(FakeTraining):
    """Has a task of a certain code."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code
        self.tries = 0

    async def rehearse(self, job: Job) -> Mapping[str, str]:
        self.tries += 1
        return {"code": self._code}


@pytest.mark.parametrize("steps_back", [True, False], ids=["shipped", "without it"])
def test_a_site_whose_code_changed_says_so_and_the_study_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_back: bool
) -> None:
    """Without the step back a study of whoever is there uses up its two attempts at once, and is aborted."""
    monkeypatch.setattr(node.repair, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(node.repair, "APPROVAL_PAUSE", 0.1)
    if not steps_back:
        monkeypatch.setattr(Node, "_step_back", lambda *_: None)

    async def run() -> StudyRecord | None:
        fed = deployed(tmp_path, {})
        fed.set_policy("site-01", approve="ask", approved=[])
        approvals = Approvals(NodeFile.read(fed.workspace.node_file("site-01")).state_folder)
        approvals.add(fed.study.id, Approval(by="ada", code="old"))
        fed.start_node("site-01", executor=Coded("new"))
        for name in fed.names[1:]:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        if steps_back:
            await until(fed, "site-01: the code of its task changed since it approved the study")
            approvals.add(fed.study.id, Approval(by="ada", code="new"))
        try:
            return await study
        finally:
            await fed.close()

    record = asyncio.run(asyncio.wait_for(run(), 60))
    assert (record is not None) == steps_back
    if record is not None:
        assert all("site-01" in entry.cohort for entry in record.rounds)


class Lost(FakeTraining):
    """Works once, and then has lost its data until somebody brings them back."""

    def __init__(self, again: asyncio.Event) -> None:
        super().__init__()
        self.again = again
        self.tries = 0

    async def rehearse(self, job: Job) -> Mapping[str, str]:
        self.tries += 1
        if job.round > 1 and not self.again.is_set():
            raise DataError("gone")
        return {}


def test_data_that_are_lost_in_the_middle_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.repair, "FIRST_PAUSE", 0.1)

    async def run() -> StudyRecord | None:
        fed, again = deployed(tmp_path, CIRCLES), asyncio.Event()
        fed.start_node("site-01", executor=Lost(again))
        for name in fed.names[1:]:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        found = await until(fed, "site-01: its data, its disk or its software are not ready")
        assert found.rounds_done == 1
        assert (found.sites[0].sat_out, found.sites[0].sat_out_round) == ("NotReady", 2)
        again.set()
        try:
            return await study
        finally:
            done = await status(fed)
            assert not any(site.sat_out for site in done.sites)  # It has taken part since.
            await fed.close()

    record = asyncio.run(asyncio.wait_for(run(), 60))
    assert record is not None
    assert len(record.rounds) == 3


def test_a_revoked_site_is_named_as_such_also_if_it_has_not_been_connected_before(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        file = edge.node_file("site-02")
        async with connect(edge.operator()) as lead:
            (before,) = await lead.status()
            assert site_words(before.sites[1]) == "not connected"
            # As after a restart: the coordinator has not seen the certificate yet, only its fingerprint in the roster.
            edge.authority.revoke("site-02")
            with pytest.raises(CertificateError):
                await first_messages(file)
            (after,) = await lead.status()
        assert site_words(after.sites[1]) == "its certificate is revoked"
        assert "waiting: 0 of 3 needed" in waiting_words(after)[0]
        assert "site-02: its certificate is revoked" in waiting_words(after)[0]
        assert site_words(after.sites[2]) == "not connected"

    at_the_edge(tmp_path, scenario)


def test_the_sites_that_are_there_are_counted_beside_one_that_was_revoked(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        runner = edge.coordinator.runners[edge.workspace.study.id]
        edge.coordinator.start(runner)
        files = [edge.node_file(name) for name in ("site-01", "site-02", "site-03")]
        nodes = [Node(file, GrpcConnector(file), FakeTraining()) for file in (files[0], files[2])]
        tasks = [asyncio.create_task(node.run()) for node in nodes]
        async with connect(edge.operator()) as lead:

            async def told(words: str) -> None:
                while waiting_words((await lead.status())[0]) != (words,):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

            await told("waiting: 2 of 3 needed; site-02: not connected")
            edge.authority.revoke("site-02")
            with pytest.raises(CertificateError):
                await first_messages(files[1])
            await told("waiting: 2 of 3 needed; site-02: its certificate is revoked")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    at_the_edge(tmp_path, scenario)
