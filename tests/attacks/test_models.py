"""Models of the coordinator's choosing: what a real node trains from, and what its silence says."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import node.models
import node.training.trainer
import secure_fl.study.start
import secure_fl.study.submission
from node.local import InlineExecutor
from node.models import Target, VerifiedModels
from node.reasons import REASONS, spoken
from node.service import Node
from node.training.jobs import Job, Result
from secure_fl import errors
from secure_fl.encoding import metrics
from secure_fl.errors import DataError, NonFiniteUpdateError, SecureFLError
from secure_fl.privacy.ledger import read_ledger
from secure_fl.results.record import NodeRound, RoundRecord
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.strategies.base import Strategy
from secure_fl.strategies.site import Batch, Site
from secure_fl.study.start import Start
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings
from tests.attacks.test_attacks import LAYOUT, EvilCoordinator, against_a_node
from tests.attacks.test_circles import CIRCLES, NINE
from tests.node.test_races import until
from tests.support.federation import Federation
from tests.support.training import FakeTraining

both = pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])


def weights(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


FIRST = weights(3, -2, 5)
STUDY = {"study": {"rounds": 6, "initial": LAYOUT.digest(LAYOUT.unflatten(FIRST)).hex()}}


def play(folder: Path, scenario: Callable[[EvilCoordinator], Any]) -> None:
    async def run(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        await scenario(evil)

    against_a_node(folder, run, settings=STUDY)


# --- the first model ----------------------------------------------------------------------------------------------


@both
def test_the_first_round_trains_from_the_studys_own_model_and_no_other_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    if not checked:
        monkeypatch.setattr(
            VerifiedModels, "route", lambda _, model, number: [Target(object=model.object, version=number - 1)]
        )

    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=weights(3, -2, 5.5))
        if checked:
            assert await evil.answer() == "Refused"
            assert not evil.fetched
            evil.announce(attempt=2, weights=FIRST)
        await evil.next_upload(1)

    play(tmp_path, scenario)


def test_a_node_that_comes_late_begins_with_the_studys_own_model_too(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator) -> None:
        near = weights(3.5, -2, 5)
        evil.announce(number=2, weights=near)
        assert await evil.answer() == "Refused"
        assert not evil.fetched
        evil.announce(number=2, attempt=2, weights=near, first=near)
        assert await evil.answer() == "Refused"
        evil.announce(number=2, attempt=3, weights=weights(4.5, -2, 5), first=FIRST)
        assert await evil.answer() == "Protection"
        evil.announce(number=3, weights=near, first=FIRST)
        await evil.next_upload(1)
        assert evil.fetched[-1] == near
        assert evil.fetched.count(FIRST) == 1

    play(tmp_path, scenario)


# --- the later ones -----------------------------------------------------------------------------------------------

JUMPS = {
    "a trap": weights(3, 1e18, 1e25),
    "a calm model": weights(3, -2, 0),  # its head is zero: what an update then says is one site's alone
    "a little too far": weights(3, -2, 6.000001),
    "not a number": weights(3, -2, np.nan),
    "infinite": weights(3, -np.inf, 5),
}


@both
@pytest.mark.parametrize("jump", JUMPS)
def test_a_model_that_no_round_can_have_made_is_not_trained_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: str, checked: bool
) -> None:
    if not checked:
        monkeypatch.setattr(node.models, "require_step", lambda *_, **__: None)

    class Careless(FakeTraining):
        async def run(self, job: Job) -> Result:
            trained.append(job.round)
            return await super().run(job)

    trained: list[int] = []

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        evil.announce(weights=FIRST)
        await evil.next_upload(1)
        evil.announce(number=2, weights=JUMPS[jump])
        if checked:
            assert await evil.answer() == "Protection"
            assert trained == [1]
            # And the node still takes the model that a round can have made: exactly the clip in every coordinate.
            evil.announce(number=3, weights=weights(4, -3, 6))
        for _ in range(200):
            if len(trained) == 2:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(trained)

    against_a_node(tmp_path, scenario, settings=STUDY, training=Careless())


def test_a_site_that_was_away_takes_the_steps_it_missed_at_once_and_none_twice(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST)
        await evil.next_upload(1)
        evil.announce(number=3, weights=weights(5.001, -2, 5))
        assert await evil.answer() == "Protection"
        evil.announce(number=4, weights=weights(4, -2, 5))
        await evil.next_upload(2)
        # Of the three steps it took one. The other two are forfeited: a round later there is one again.
        evil.announce(number=5, weights=weights(6, -2, 5))
        assert await evil.answer() == "Protection"
        evil.announce(number=6, weights=weights(6, -2, 5))
        await evil.next_upload(3)
        assert evil.fetched.count(FIRST) == 1

    play(tmp_path, scenario)


@both
def test_a_study_that_is_closed_and_offered_again_goes_on_from_the_last_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Otherwise the coordinator could begin anew whenever it likes, with every round so far as a step to spend."""
    if not checked:
        monkeypatch.setattr(VerifiedModels, "_load", lambda _: None)
    here, away = weights(4, -2, 5), weights(0, -2, 5)

    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST)
        await evil.next_upload(1)
        evil.announce(number=2, weights=here, first=FIRST)
        await evil.next_upload(2)
        closed = pb.StudyClosed(finished=False, reason="")
        offer = pb.StudyOffer(settings=evil.fed.study.canonical())
        evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=evil.fed.study.id, study_closed=closed))
        evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=evil.fed.study.id, study_offer=offer))
        assert (await asyncio.wait_for(evil.said.get(), 5)).study_answer.accepted
        evil.announce(number=4, weights=away, first=FIRST)
        if checked:
            assert await evil.answer() == "Protection"
        else:
            await evil.next_upload(3)

    play(tmp_path, scenario)


def test_models_that_vanished_from_a_nodes_disk_are_no_new_beginning(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST)
        await evil.next_upload(1)
        folder = evil.fed.workspace.node_folder("site-01") / "studies" / evil.fed.study.id
        (kept,) = folder.glob("verified-*.bin")
        assert kept.read_bytes() == FIRST
        kept.unlink()
        evil.announce(number=2, weights=weights(4, -2, 5), first=FIRST)
        assert await evil.answer() == "NotReady"

    play(tmp_path, scenario)


class Late(FakeTraining):
    """Waits in round 3 until the test lets it go."""

    def __init__(self, event: asyncio.Event) -> None:
        super().__init__()
        self.event = event

    async def run(self, job: Job) -> Result:
        if job.round == 3:
            await self.event.wait()
        return await super().run(job)


def test_a_site_that_joins_late_is_given_the_first_model_too(tmp_path: Path) -> None:
    async def run() -> None:
        rounds = {"deadline": 20, "phase_deadline": 20, "gather": 0.3}
        fed = Federation(tmp_path / "run", {"study": {"rounds": 5}, "rounds": rounds})
        event = asyncio.Event()
        study = asyncio.create_task(fed.coordinate())
        for name in fed.names[:3]:
            fed.start_node(name, executor=Late(event))
        while not any(kind == "round-started" and fields["round"] == 3 for kind, fields in fed.events):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        objects = fed.workspace.study_state / "objects"
        assert len(list(objects.iterdir())) == 3  # the first, the one before, the current one
        fed.start_node("site-04")
        await asyncio.sleep(0.5)
        event.set()
        record = await study
        assert record is not None
        fourth = [_of(entry, "site-04") for entry in record.rounds if entry.number >= 4]
        assert [(site.outcome, site.reason) for site in fourth] == [("took part", "")] * 3
        await fed.close()
        assert len(list(objects.iterdir())) <= 3  # However many rounds there were.

    asyncio.run(asyncio.wait_for(run(), 60))


def _of(entry: RoundRecord, name: str) -> NodeRound:
    return next(site for site in entry.nodes if site.name == name)


# --- what silence says --------------------------------------------------------------------------------------------

RECORD = (10.0, 10.0, 10.0)


class VaultSettings(TaskSettings):
    """At whom the file is missing."""

    broken: str = ""


class Vault(Task):
    """y = Σx; the first site has one record that the others do not have."""

    row: ClassVar[int] = 17  # of the record; from 80 on they are for testing
    units: ClassVar[tuple[float, ...]] = (1e25,)  # how strongly hidden units of the trap answer to it
    kind: ClassVar[Literal["classification", "regression"]] = "regression"
    Settings = VaultSettings
    settings: VaultSettings

    def model(self) -> nn.Module:
        """A hidden layer and a head."""
        return nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 1))

    def load(self, source: Source) -> LocalData:
        """A hundred points."""
        index = source.share.index if source.share else 0
        if self.settings.broken == f"site-{index + 1:02d}":
            raise DataError("the ward's file is gone")
        x = torch.randn(100, 3, generator=torch.Generator().manual_seed(index))
        if index == 0:
            x[self.row] = torch.tensor(RECORD)
        y = x.sum(1, keepdim=True)
        return LocalData(train=Split(inputs=x[:80], targets=y[:80]), test=Split(inputs=x[80:], targets=y[80:]))


class Textbook(Vault):
    """Whether Σx is positive. For NaN, torch's own loss raises a `RuntimeError`."""

    units = (1e25, -1e25)  # infinity minus infinity

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy."""
        return functional.binary_cross_entropy(outputs.sigmoid(), (targets > 0).float())


class Asserting(Vault):
    """A habit of research code."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What is not finite is somebody else's mistake."""
        assert torch.isfinite(outputs).all()
        return functional.mse_loss(outputs, targets)


class Margin(Vault):
    """A loss without a lower bound, which becomes −∞ on a test row."""

    row = 90

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How far on the right side."""
        return -(outputs * targets.sign()).mean()


def trapped(task: Task, strategy: Strategy, seed: int) -> Start:
    """One unit, or two, answer to the record alone, and what they answer is more than float32 holds."""
    honest = START_OF(task, strategy, seed)
    if not isinstance(task, Vault):
        return honest
    hidden, head = (honest.blocks[name].copy() for name in ("0", "1"))
    record = np.array(RECORD, np.float32)
    for unit, answer in enumerate(task.units):
        hidden[3 * unit : 3 * unit + 3], hidden[12 + unit] = 1e18 * record, -1e18 * (record @ record - 1)
        head[unit] = answer
    return Start(whole=honest.whole, layout=honest.layout, blocks={"0": hidden, "1": head}, kind=honest.kind)


START_OF = secure_fl.study.start.start_of


def raising(self: Site, batch: Batch, *, penalty: Any = None, loss: Any = None) -> float:
    """`Site.backward` as it was: an end to training where the loss is no number."""
    inputs, targets = batch
    value = (loss or self.task.loss)(self.model(inputs), targets)
    if not torch.isfinite(value):
        raise NonFiniteUpdateError("the training loss became NaN or infinite")
    value.backward()
    return float(value.detach())


@both
@pytest.mark.parametrize(
    ("task", "protection"),
    [("Vault", "none"), ("Vault", "masked"), ("Textbook", "masked"), ("Asserting", "masked"), ("Margin", "masked")],
)
def test_a_trap_for_one_record_does_not_tell_who_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool, task: str, protection: str
) -> None:
    """The study's first model is the trap, so that nothing but the site's silence could give the record away."""
    monkeypatch.setattr(secure_fl.study.start, "start_of", trapped)
    monkeypatch.setattr(secure_fl.study.start, "_outlines", {})
    monkeypatch.setattr(secure_fl.study.submission, "start_of", trapped)
    if not checked:
        monkeypatch.setattr(Site, "backward", raising)
        monkeypatch.setattr(node.training.trainer, "settled_fit", lambda strategy, site: strategy.fit(site))
        monkeypatch.setattr(metrics, "_fits", lambda value, ceiling: value <= ceiling)

    async def run() -> RoundRecord:
        settings = {
            "task": {"name": f"{__name__}:{task}"},
            "study": {"rounds": 1},
            "protection": {"kind": protection},
            "strategy": {"name": "fedavg", "learning_rate": 1e-4},
        }
        fed = Federation(tmp_path / "run", settings)
        for name in fed.names:
            fed.start_node(name, executor=InlineExecutor())
        record = await fed.coordinate()
        await fed.close()
        assert record is not None
        return record.rounds[0]

    first = asyncio.run(asyncio.wait_for(run(), 60))
    holder, *others = first.nodes
    assert {(site.outcome, site.reason) for site in others} == {("took part", "")}
    if checked:
        assert (holder.outcome, holder.reason) == ("took part", "")
        sizes = {site.bytes_up for site in first.nodes}
        assert max(sizes) - min(sizes) < 16  # signatures and varints
    else:
        assert holder.outcome == "sat out"


def test_what_does_not_work_at_a_site_fails_before_the_fetch_and_has_one_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        settings = {"task": {"name": f"{__name__}:Vault", "broken": "site-02"}, "study": {"rounds": 1}}
        fed = Federation(tmp_path / "run", settings)
        for name in fed.names:
            fed.start_node(name, executor=InlineExecutor())
        with caplog.at_level(logging.WARNING):
            record = await fed.coordinate()
        await fed.close()
        assert record is not None
        broken = _of(record.rounds[0], "site-02")
        assert (broken.outcome, broken.reason) == ("sat out", "NotReady")
        assert "the ward's file is gone" in caplog.text
        folder = fed.workspace.node_folder("site-02")
        assert not list(folder.rglob("verified-*"))
        assert "planned" not in [entry.kind for entry in read_ledger(folder / "ledger.jsonl")]

    asyncio.run(asyncio.wait_for(run(), 60))


def test_the_words_for_sitting_out_are_few() -> None:
    kinds = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, SecureFLError)]
    assert len(kinds) > 30
    said = {spoken(cls.__new__(cls)) for cls in kinds}
    assert said == REASONS
    assert said == {
        "BudgetExceeded", "Refused", "ReleaseRefused", "Protection", "LateMessage", "Restarted", "NotReady",
    }  # fmt: skip
    for cls in (errors.DataError, errors.TrainingError, errors.NonFiniteUpdateError, errors.StorageError):
        assert spoken(cls("details")) == "NotReady"
    assert spoken(MemoryError()) == "NotReady"


class Leisurely(FakeTraining):
    """Takes its time, or fails after it."""

    def __init__(self, seconds: float, *, fails: bool) -> None:
        super().__init__()
        self.seconds, self.fails = seconds, fails

    async def run(self, job: Job) -> Result:
        await asyncio.sleep(self.seconds)
        if self.fails:
            raise DataError("half way")
        return await super().run(job)


@pytest.mark.parametrize("fails", [False, True], ids=["answers", "sits out"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "at once"])
def test_how_long_training_took_does_not_show(tmp_path: Path, padded: bool, fails: bool) -> None:
    taken: list[float] = []

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        begun = time.monotonic()
        evil.announce()
        if fails:
            assert await evil.answer() == "NotReady"
        else:
            await evil.next_upload(1)
        taken.append(time.monotonic() - begun)

    for index, seconds in enumerate((0.0, 1.2)):
        against_a_node(
            tmp_path / str(index), scenario, training=Leisurely(seconds, fails=fails),
            policy={"answer_after": 2.0 if padded else 0.0},
        )  # fmt: skip
    quick, slow = taken
    if padded:
        assert min(taken) >= 1.99
        assert abs(slow - quick) < 0.6
    else:
        assert slow - quick > 0.6


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "at once"])
def test_nor_does_it_show_in_what_the_next_attempt_fetches(tmp_path: Path, padded: bool) -> None:
    """A coordinator ends attempts early and looks whether the site still needs the model in the next one."""
    fetched: list[int] = []

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], node: Node) -> None:
        evil.announce()
        store = next(iter(node._studies.values())).store
        assert await until(store.kept_update(1).exists, seconds=30)  # trained, and nothing was said of it
        assert not evil.uploads or not padded
        closed = pb.RoundClosed(round=1, attempt=1, committed=False)
        evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=evil.fed.study.id, round_closed=closed))
        evil.announce(attempt=2)
        await evil.next_upload(1 if padded else 2)
        fetched.append(len(evil.fetched))

    against_a_node(
        tmp_path, scenario, training=Leisurely(0.2, fails=False), policy={"answer_after": 3.0 if padded else 0.0},
        settings={**CIRCLES, **NINE},
    )  # fmt: skip
    assert fetched == [2 if padded else 1]
