"""A coordinator that cheats a site under differential privacy: for a second draw of noise, for a seed, for a metric."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node import service
from node.attempt import Participation
from node.config import NodeFile
from node.local import InlineExecutor
from node.service import Node
from node.training.jobs import Job, Result
from node.training.seeds import DataSecrets, simulated_secrets
from secure_fl.blocks import Vector
from secure_fl.checkpoints import load_arrays
from secure_fl.privacy.audit import examine
from secure_fl.privacy.spending import spent
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.settings import PLAIN_METRICS, Study
from tests.attacks.test_attacks import HANGS, INITIAL, EvilCoordinator, _Fixed
from tests.support.budgets import PRIVACY, entries_of
from tests.support.federation import Federation

SITE = "site-01"
SETTINGS: dict[str, Any] = {
    "study": {"rounds": 2, "initial": INITIAL},
    "task": {"name": "tests.support.task:Three"},
    "privacy": PRIVACY,
    "strategy": {"name": "fedavg", "batch_size": 16, "epochs": 1},
    "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 3, "attempts": 4},
}


class Watched(InlineExecutor):
    """Trains for real, and keeps what came of it: floats, before they are rounded at random."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[Vector] = []

    async def run(self, job: Job) -> Result:
        result = await super().run(job)
        if job.kind is RoundKind.TRAIN and not job.rehearsal:
            self.updates.append(load_arrays(Path(job.update_to))["features"])
        return result


class Evil(EvilCoordinator):
    """Keeps the bytes of uploads, too."""

    def __init__(self, fed: Federation) -> None:
        super().__init__(fed)
        self.bulks: list[bytes] = []

    async def upload(self, peer: Any, parts: AsyncIterator[pb.UploadPart]) -> pb.UploadReceipt:
        collected = [part async for part in parts]
        self.bulks.append(b"".join(part.chunk.data for part in collected[1:]))

        async def again() -> AsyncIterator[pb.UploadPart]:
            for part in collected:
                yield part

        return await super().upload(peer, again())

    def void(self, number: int, attempt: int) -> None:
        """Say that an attempt failed."""
        closed = pb.RoundClosed(round=number, attempt=attempt, committed=False)
        self.outbox.put_nowait(pb.CoordinatorMessage(study_id=self.fed.study.id, round_closed=closed))


def federation(folder: Path, **changes: Any) -> Federation:
    return Federation(folder / "run", {**SETTINGS, **changes})


def site_file(fed: Federation, *, simulated: bool = False) -> NodeFile:
    """A deployed site's: its randomness is its own."""
    file = NodeFile.read(fed.workspace.node_file(SITE))
    return file if simulated else file.model_copy(update={"simulation": None})


def against(
    fed: Federation, scenario: Callable[[Evil], Any], *, simulated: bool = False, accepted: bool = True
) -> Watched:
    """One real node that really trains."""
    training = Watched()

    async def run() -> None:
        evil, file = Evil(fed), site_file(fed, simulated=simulated)
        task = asyncio.create_task(Node(file, _Fixed(evil, file), training).run())
        try:
            async with asyncio.timeout(HANGS):
                assert (await evil.said.get()).study_answer.accepted == accepted
                await scenario(evil)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return training


# --- a second draw ------------------------------------------------------------------------------------------------


def draws(fed: Federation) -> tuple[set[bytes], int, int]:
    """Has one round attempted three times: the different answers, and the trainings done and counted."""
    bulks: list[bytes] = []

    async def scenario(evil: Evil) -> None:
        for attempt in (1, 2, 3):
            evil.announce(attempt=attempt)
            await evil.next_upload(attempt)
            evil.void(1, attempt)
        bulks.extend(evil.bulks)

    training = against(fed, scenario)
    entries = entries_of(fed, SITE)
    assert examine(entries).ok
    (event,) = spent(entries, fed.study.task.dataset_id)
    each = round(80 / 16)  # steps of one pass over the declared units
    assert hasattr(event, "steps")
    return set(bulks), len(training.updates), event.steps // each


def test_a_voided_attempt_does_not_buy_another_draw_of_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, trained, charged = draws(federation(tmp_path / "shipped"))
    assert (len(answers), trained, charged) == (1, 1, 1)
    # Without what is kept of a round, the mean of many answers has little noise left. At least all of it is charged.
    monkeypatch.setattr(Participation, "_kept", lambda _: None)
    answers, trained, charged = draws(federation(tmp_path / "without"))
    assert (len(answers), trained, charged) == (3, 3, 3)


# --- a seed that others know --------------------------------------------------------------------------------------


def executions(folder: Path, *, simulated: bool = False) -> tuple[Vector, Vector]:
    """What comes of the same round, twice, from the same disk: same study, seed, data, model and site secret."""
    first = federation(folder)
    (first.workspace.node_folder(SITE) / "secret.key").write_bytes(bytes(range(32)))
    (first.workspace.node_folder(SITE) / "secret.key").chmod(0o600)
    kept = folder / "kept"
    shutil.copytree(first.workspace.node_folder(SITE), kept)
    found = []
    for _ in range(2):
        shutil.rmtree(first.workspace.node_folder(SITE))
        shutil.copytree(kept, first.workspace.node_folder(SITE))

        async def scenario(evil: Evil) -> None:
            evil.announce()
            await evil.next_upload(1)

        found.extend(against(first, scenario, simulated=simulated).updates)
    one, two = found
    return one, two


def test_noise_does_not_follow_from_anything_that_others_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = executions(tmp_path / "site")
    assert not np.allclose(one, two)
    one, two = executions(tmp_path / "simulation", simulated=True)
    assert np.array_equal(one, two)

    # Were it drawn from the study's seed at a site, too, whoever knows the study could take the noise off again.
    def known(self: Node, resolved: Any, number: int, attempt: int) -> DataSecrets:
        del self
        return simulated_secrets(resolved.study.study.seed, SITE, number, attempt)

    monkeypatch.setattr(service.Node, "_data_secrets", known)
    one, two = executions(tmp_path / "without")
    assert np.array_equal(one, two)


# --- a metric -----------------------------------------------------------------------------------------------------


def measured(fed: Federation, *, accepted: bool) -> tuple[list[pb.UploadHeader], Watched]:
    """What a coordinator gets that asks for a measurement."""
    headers: list[pb.UploadHeader] = []

    async def scenario(evil: Evil) -> None:
        evil.announce(number=3, kind=pb.ROUND_KIND_EVALUATE)
        if accepted:
            await evil.next_upload(1)
        else:
            await asyncio.sleep(1)  # A study that was not accepted gets no word at all.
        headers.extend(evil.uploads)

    return headers, against(fed, scenario, accepted=accepted)


def test_a_site_that_did_not_agree_to_plain_measurements_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = federation(tmp_path / "shipped", metrics={"share": "per-node"})
    fed.set_policy(SITE, exceptions=sorted(fed.study.exceptions - {PLAIN_METRICS}))
    headers, _ = measured(fed, accepted=False)
    assert headers == []
    # Without the exception's name in the study, the site's true loss leaves with no noise.
    named = Study.exceptions.fget  # type: ignore[attr-defined]
    fed = federation(tmp_path / "without", metrics={"share": "per-node"})
    fed.set_policy(SITE, exceptions=sorted(fed.study.exceptions - {PLAIN_METRICS}))
    monkeypatch.setattr(Study, "exceptions", property(lambda self: named(self) - {PLAIN_METRICS}))
    headers, _ = measured(fed, accepted=True)
    assert len(headers) == 1
    assert headers[0].HasField("metrics")
    assert headers[0].metrics.loss > 0


def test_a_study_that_shares_no_measurements_gets_none(tmp_path: Path) -> None:
    fed = federation(tmp_path, metrics={"share": "none"})
    fed.set_policy(SITE, exceptions=sorted(fed.study.exceptions))
    assert PLAIN_METRICS not in fed.study.exceptions
    headers, _ = measured(fed, accepted=True)
    assert len(headers) == 1
    assert not headers[0].HasField("metrics")


def test_no_model_is_measured_before_the_study_is_over(tmp_path: Path) -> None:
    async def scenario(evil: Evil) -> None:
        for number in (1, 2, 4):
            evil.announce(number=number, kind=pb.ROUND_KIND_EVALUATE)
            assert await evil.answer() == "Refused"
        assert not evil.uploads

    against(federation(tmp_path), scenario)
