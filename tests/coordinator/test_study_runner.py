"""What a round does when sites are slow, refuse, fail or send nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.attempt import AttemptRunner
from coordinator.service import Coordinator
from node.training.jobs import Job, Result, layout_from_json
from secure_fl import strategies
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Blocks, Layout
from secure_fl.checkpoints import save_arrays
from secure_fl.errors import ConflictingUploadError, LateMessageError, TrainingError
from secure_fl.privacy.ledger import read_ledger
from secure_fl.results.record import StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.strategies.base import Combine, Request, Strategy
from secure_fl.transport.local import LocalLink
from secure_fl.transport.wire import reference, sign_upload_header
from tests.support.federation import Federation
from tests.support.network import HANG, LinkFault, Network
from tests.support.training import FakeTraining


def play(folder: Path, settings: dict[str, Any], scenario: Callable[[Federation], Awaitable[None]], **kw: Any) -> None:
    """Run a scenario on a fresh federation."""

    async def run() -> None:
        fed = Federation(folder / "run", settings, **kw)
        try:
            await asyncio.wait_for(scenario(fed), 60)
        finally:
            await fed.close()

    asyncio.run(run())


def start_all(fed: Federation, special: dict[str, Any] | None = None) -> None:
    """Every node, some with another executor."""
    for name in fed.names:
        fed.start_node(name, executor=(special or {}).get(name))


async def finish(fed: Federation) -> StudyRecord:
    """Run the coordinator to the end of the study."""
    record = await fed.coordinate()
    assert record is not None, fed.events[-2:]
    return record


class Slow(FakeTraining):
    """Never gets done."""

    cancelled = False

    async def run(self, job: Job) -> Result:
        """Train for ever, unless cancelled."""
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


class Failing(FakeTraining):
    """Breaks down."""

    async def run(self, job: Job) -> Result:
        """Raise."""
        raise TrainingError("out of memory")


def test_a_straggler_is_left_out_and_its_training_cancelled(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        slow = Slow()
        start_all(fed, {"site-02": slow})
        record = await finish(fed)
        for round_ in record.rounds:
            assert round_.cohort == ("site-01", "site-03", "site-04")
            node = next(node for node in round_.nodes if node.name == "site-02")
            assert node.outcome in ("dropped", "absent")
        assert slow.cancelled

    play(tmp_path, {"rounds": {"deadline": 1, "phase_deadline": 5, "gather": 2}}, scenario)


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_an_update_that_is_no_number_never_leaves_and_the_wire_does_not_say_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, factor: float
) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed, {"site-01": FakeTraining(poison=lambda job: factor if job.round == 1 else 1.0)})
        record = await finish(fed)
        first, second = record.rounds[:2]
        assert "site-01" not in first.cohort
        assert next(n for n in first.nodes if n.name == "site-01").outcome == "sat out"
        assert next(n for n in first.nodes if n.name == "site-01").reason == "NotReady"
        assert "site-01" in second.cohort
        assert "NaN or infinity" in caplog.text
        kinds = [
            entry.kind
            for entry in read_ledger(fed.workspace.node_folder("site-01") / "ledger.jsonl")
            if entry.facts.get("round") == 1
        ]
        assert kinds == ["planned"]  # Nothing left; but something was computed, so it is not taken back.

    play(tmp_path, {}, scenario)


def test_failed_training_is_not_the_studys_end(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed, {"site-03": Failing()})
        record = await finish(fed)
        assert record.outcome == "finished"
        node = next(node for node in record.rounds[0].nodes if node.name == "site-03")
        assert (node.outcome, node.reason) == ("sat out", "NotReady")

    play(tmp_path, {}, scenario)


def test_a_coordinator_started_again_knows_the_rounds_of_a_study_that_has_ended(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed)
        record = await finish(fed)
        again = Coordinator(fed.workspace.coordinator_state)
        again.resume()
        runner = again.runners[fed.study.id]
        assert (runner.outcome, runner.rounds_done, runner.known_record()) == ("finished", 2, record)
        await again.close()

    play(tmp_path, {}, scenario)


def test_too_few_sites_void_the_round_and_in_the_end_the_study(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed, {"site-03": Failing(), "site-04": Failing()})
        assert await fed.coordinate() is None
        voids = [fields for kind, fields in fed.events if kind == "round-void"]
        assert [fields["reason"] for fields in voids] == ["CohortTooSmall"] * 3
        assert fed.events[-1][0] == "study-failed"
        assert fed.events[-1][1]["code"] == "StudyAborted"

    play(tmp_path, {}, scenario)


@pytest.mark.parametrize(
    ("policy", "logged"),
    [
        ({"approved": []}, "not approved here"),
        ({"protections": ["masked"]}, "[policy] protections"),
        ({"strategies": ["local"]}, "[policy] strategies"),
        ({"min_cohort": 4}, "cohorts smaller than 4"),
        ({"colluders": 2}, "fewer than 2 colluding"),
        ({"metrics": "none"}, "[policy] metrics"),
        ({"datasets": ["other"]}, "[policy] datasets"),
        ({"epsilon": 2.0, "delta": 1e-5}, "no differential privacy"),
    ],
)
def test_a_sites_policy_wins_and_nothing_leaves_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, policy: dict[str, Any], logged: str
) -> None:
    async def scenario(fed: Federation) -> None:
        fed.set_policy("site-01", **policy)
        start_all(fed)
        record = await finish(fed)
        assert all(round_.cohort == ("site-02", "site-03", "site-04") for round_ in record.rounds)
        reason = "NotApproved" if "approved" in policy else "Refused"
        assert ("refused", {"study_id": fed.study.id, "node": "site-01", "reason": reason}) in fed.events
        assert logged in caplog.text
        ledger = list(read_ledger(fed.workspace.node_folder("site-01") / "ledger.jsonl"))
        assert [entry.kind for entry in ledger] == ["opened"]

    play(tmp_path, {"rounds": {"gather": 1}}, scenario)


def test_more_of_a_model_than_the_policy_lets_go_stays_at_the_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(fed: Federation) -> None:
        fed.set_policy("site-01", upload_parameters=3)
        start_all(fed)
        record = await finish(fed)
        assert all(round_.cohort == ("site-02", "site-03", "site-04") for round_ in record.rounds if round_.number < 3)
        assert "[policy] upload_parameters" in caplog.text
        ledger = list(read_ledger(fed.workspace.node_folder("site-01") / "ledger.jsonl"))
        assert {entry.facts["round"] for entry in ledger if entry.kind == "sent"} <= {record.rounds[-1].number}

    play(tmp_path, {}, scenario)


@pytest.mark.parametrize("share", ["none", "aggregate", "per-node"])
def test_metrics_are_shared_as_the_study_says(tmp_path: Path, share: str) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed)
        record = await finish(fed)
        for round_ in record.rounds:
            per_node = [node.accuracy for node in round_.nodes]
            assert per_node == ([0.5] * 4 if share == "per-node" else [None] * 4)
            if share == "none":
                assert round_.mean_accuracy is None
            else:
                assert round_.mean_accuracy == pytest.approx(0.5, abs=1e-4)
                assert round_.mean_loss == pytest.approx(1.0, abs=1e-3)

    play(tmp_path, {"metrics": {"share": share}}, scenario)


def test_an_answers_bytes_belong_to_its_round_however_late_its_receipt_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = AttemptRunner.receive

    async def dawdling(*given: Any, **named: Any) -> bool:
        duplicate = await accept(*given, **named)
        await asyncio.sleep(0.3)  # in which the round is closed and recorded
        return duplicate

    monkeypatch.setattr(AttemptRunner, "receive", dawdling)

    async def scenario(fed: Federation) -> None:
        start_all(fed)
        record = await finish(fed)
        sent = {node.bytes_up for entry in record.rounds[:2] for node in entry.nodes}
        assert len(record.rounds) == 3
        assert min(sent) > 0.9 * max(sent)

    play(tmp_path, {"study": {"rounds": 2}, "protection": {"kind": "none"}}, scenario)


def test_a_resend_is_acknowledged_a_different_answer_and_a_late_one_are_refused(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        sent: list[pb.UploadHeader] = []
        outcomes: list[Any] = []
        original = LocalLink.upload

        async def spying(self: LocalLink, parts: Any, *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
            collected = [part async for part in parts]
            header = collected[0].header
            receipt = await original(self, _again(collected), timeout=timeout)
            if self._peer.name == "site-01" and header.round == 1:
                sent.append(header)
                outcomes.append(await original(self, _again(collected), timeout=timeout))
                other = pb.UploadHeader()
                other.CopyFrom(header)
                other.payload.body = b""
                other.bulk.CopyFrom(reference(b""))
                sign_upload_header(other, _key(fed))
                with pytest.raises(ConflictingUploadError):
                    await original(self, _again([pb.UploadPart(header=other)]), timeout=timeout)
            elif self._peer.name == "site-01" and sent:
                with pytest.raises(LateMessageError):
                    await original(self, _again([pb.UploadPart(header=sent[0])]), timeout=timeout)
                outcomes.append("late")
            return receipt

        LocalLink.upload = spying  # type: ignore[method-assign]
        try:
            start_all(fed)
            record = await finish(fed)
        finally:
            LocalLink.upload = original  # type: ignore[method-assign]
        assert outcomes[0].duplicate
        assert "late" in outcomes
        assert all(round_.cohort == fed.names for round_ in record.rounds)

    play(tmp_path, {}, scenario)


def _key(fed: Federation) -> Any:
    from node.config import NodeFile

    return NodeFile.read(fed.workspace.node_file("site-01")).credential().signing_key


async def _again(parts: list[pb.UploadPart]) -> Any:
    for part in parts:
        yield part


class Neighbours(Strategy):
    """A strategy that asks for *combine*: every node its own mixture of all peers."""

    name = "neighbours"
    asks = RequestKind.COMBINE
    has_global_model = False

    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:
        """All blocks."""
        return Combine(blocks=layout.names)

    def explain(self) -> tuple[str, ...]:
        """A test."""
        return ("Leaves: everything, to be mixed.",)

    def fit(self, site: Any) -> Blocks:
        """Unused: training is faked."""
        raise AssertionError

    def attend(self, me: str, squared_distances: Mapping[str, float]) -> Mapping[str, float]:
        """The node itself counts most."""
        return {peer: 2.0 if peer == me else 1.0 for peer in squared_distances}


def test_a_combine_opens_each_nodes_own_mixture_at_that_node_only(tmp_path: Path) -> None:
    strategies.register("neighbours", "tests.coordinator.test_study_runner:Neighbours")

    async def scenario(fed: Federation) -> None:
        start_all(fed)
        record = await finish(fed)
        assert record.combinations_opened == 2 * 5
        mixtures = {}
        for name in fed.names:
            folder = fed.workspace.node_folder(name) / "studies" / fed.study.id
            assert (folder / "combination-2.safetensors").exists()
            mixtures[name] = (folder / "combination-2.safetensors").read_bytes()
        assert len(set(mixtures.values())) == 5
        # The coordinator's own model did not move: it only passed the mixtures on.
        assert {path.name for path in (fed.workspace.study_state / "checkpoints").iterdir()} >= {"000002.safetensors"}

    play(tmp_path, {"strategy": {"name": "neighbours"}, "metrics": {"share": "none"}}, scenario, nodes=5)


def test_under_masks_a_site_is_charged_for_what_carries_its_update_and_not_before(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        for name in fed.names[1:]:
            fed.start_node(name)
        # The first site is told that the round goes on without it while it waits for the shares of the others.
        fed.start_node(fed.names[0], network=Network((LinkFault(what=HANG, point="send:share", round=1),)))
        record = await finish(fed)
        assert fed.names[0] not in record.rounds[0].cohort
        kinds = [
            (entry.facts["round"], entry.kind)
            for entry in read_ledger(fed.workspace.node_folder(fed.names[0]) / "ledger.jsonl")
            if entry.kind in ("planned", "sent", "cancelled")
        ]
        assert [kind for number, kind in kinds if number == 1] == ["planned"]
        assert (2, "sent") in kinds
        spent = [
            entry.facts["release"]["bytes"]
            for entry in read_ledger(fed.workspace.node_folder(fed.names[1]) / "ledger.jsonl")
            if entry.kind == "sent" and entry.facts["round"] == 1
        ]
        assert spent[0] > 8 * (fed.study.check().size // 3)  # the masked words, not a manifest

    play(
        tmp_path,
        {"protection": {"kind": "masked"}, "rounds": {"deadline": 10, "phase_deadline": 1.5, "gather": 2}},
        scenario,
    )


class Wide(FakeTraining):
    """An update of which so many values are beyond the clip."""

    def __init__(self, beyond: int) -> None:
        super().__init__()
        self.beyond = beyond

    async def run(self, job: Job) -> Result:
        result = await super().run(job)
        if job.kind is RoundKind.TRAIN:
            layout = layout_from_json(job.layout)
            update = {shape.name: np.zeros(shape.size, "<f4") for shape in layout}
            update[layout.names[0]][: self.beyond] = 1.5
            save_arrays(Path(job.update_to), update)
        return result


@pytest.mark.parametrize(("beyond", "told"), [(17, False), (18, True)])
def test_a_site_hears_of_its_clip_from_a_thousandth_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, beyond: int, told: bool
) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed, {"site-01": Wide(beyond)})
        record = await finish(fed)
        assert record.shared_parameters == 17_258
        assert ("were clipped; if this repeats" in caplog.text) is told

    play(tmp_path, {}, scenario)
