"""Metrics that a task declares: what the record says of them is what all sites' rows together come to, exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.config import NodeFile
from node.training.jobs import Job, Result
from secure_fl.errors import MalformedMessageError
from secure_fl.results.record import StudyRecord
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.tasks.metrics import Auc, Sensitivity
from secure_fl.transport.local import LocalLink
from secure_fl.transport.wire import sign_upload_header
from tests.coordinator.test_study_runner import finish, play
from tests.support.federation import Federation
from tests.support.training import FakeTraining

TASK = {"name": "breast-cancer"}
AUC, SENSITIVITY = Auc(), Sensitivity(positive=0)
NODES = 5


def counted(site: str) -> tuple[int, ...]:
    """Histograms that differ from site to site, with counts that take more than one digit."""
    number = int(site[-2:])
    others = [(number * 7919 * (64 - at)) % 90_001 for at in range(64)]
    return (*others, *((number * 104_729 * at) % 90_001 for at in range(64)))


class Counting(FakeTraining):
    """Has measured the task's metrics, too, and has as many rows as its name says."""

    async def run(self, job: Job) -> Result:
        """As ever, with sums."""
        result = await super().run(job)
        sums = {"auc": counted(job.me), "sensitivity_at_90": counted(job.me)}
        accuracy = int(job.me[-2:]) / 8
        samples = 100 * int(job.me[-2:])
        metrics = replace(result.metrics, sums=sums, accuracy=accuracy, global_accuracy=accuracy, samples=samples)
        return replace(result, metrics=metrics, samples=samples)


class Forgetful(Counting):
    """Could not measure one of them."""

    async def run(self, job: Job) -> Result:
        """One metric is missing, one has another length."""
        result = await super().run(job)
        return replace(result, metrics=replace(result.metrics, sums={"sensitivity_at_90": (1, 2, 3)}))


def recorded(folder: Path, settings: dict[str, Any], special: dict[str, FakeTraining] | None = None) -> StudyRecord:
    records: list[StudyRecord] = []

    async def scenario(fed: Federation) -> None:
        for name in fed.names:
            fed.start_node(name, executor=(special or {}).get(name) or Counting())
        records.append(await finish(fed))

    play(folder, {"task": TASK, **settings}, scenario, nodes=NODES)
    return records[0]


def pooled(names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(counted(name) for name in names), strict=True)))


@pytest.mark.parametrize(
    "protection",
    [
        {"kind": "masked", "recovery": False},
        {"kind": "masked", "recovery": True, "reference_samples": 400},
        {"kind": "encrypted", "recovery": False},
        {"kind": "sealed", "recovery": False},
    ],
    ids=lambda settings: "-".join(str(value) for value in settings.values()),
)
def test_metrics_of_all_sites_are_those_of_their_rows_together(tmp_path: Path, protection: dict[str, Any]) -> None:
    record = recorded(tmp_path, {"metrics": {"share": "aggregate"}, "study": {"rounds": 1}, "protection": protection})
    together = pooled(record.roster)
    assert len(record.rounds) == 2
    for entry in record.rounds:
        assert entry.metrics == {"auc": AUC.value(together), "sensitivity_at_90": SENSITIVITY.value(together)}
        assert entry.sums == {}  # The coordinator knows what they come to, and the record keeps no more.
        assert all(node.metrics == {} and node.accuracy is None for node in entry.nodes)
        # A mean over sites, whatever they weigh in the model.
        near = pytest.approx(3 / 8, abs=4 / 2 ** protection.get("bits", 16))
        assert entry.mean_accuracy == near
        assert entry.global_accuracy == near


def test_per_node_the_record_has_each_sites_own_and_all_together(tmp_path: Path) -> None:
    record = recorded(tmp_path, {"metrics": {"share": "per-node"}, "study": {"rounds": 1}})
    for entry in record.rounds:
        assert entry.metrics["auc"] == AUC.value(pooled(record.roster))
        assert [node.metrics["auc"] for node in entry.nodes] == [AUC.value(counted(name)) for name in record.roster]
        # One definition under every [metrics] share: each site counts the same, with many rows or few.
        assert entry.mean_accuracy == entry.global_accuracy == pytest.approx(3 / 8)


def test_nothing_is_shared_where_nothing_may_be(tmp_path: Path) -> None:
    record = recorded(tmp_path, {"metrics": {"share": "none"}, "study": {"rounds": 1}})
    assert all((entry.metrics, entry.sums) == ({}, {}) for entry in record.rounds)
    assert all((node.metrics, node.sums) == ({}, {}) for entry in record.rounds for node in entry.nodes)


@pytest.mark.parametrize("share", ["aggregate", "per-node"])
def test_what_one_site_does_not_know_is_unknown_rather_than_wrong(tmp_path: Path, share: str) -> None:
    settings = {"metrics": {"share": share}, "study": {"rounds": 1}}
    record = recorded(tmp_path, settings, {"site-02": Forgetful()})
    for entry in record.rounds:
        assert entry.cohort == record.roster
        assert entry.metrics == {"auc": None, "sensitivity_at_90": None}
        assert entry.mean_accuracy == pytest.approx(3 / 8, abs=1e-4)


def test_a_site_that_reports_another_number_of_sums_is_refused_and_the_study_goes_on(tmp_path: Path) -> None:
    refused: list[str] = []

    async def scenario(fed: Federation) -> None:
        original = LocalLink.upload
        key = NodeFile.read(fed.workspace.node_file("site-01")).credential().signing_key

        async def lying(self: LocalLink, parts: Any, *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
            collected = [part async for part in parts]
            header = collected[0].header
            if self._peer.name == "site-01" and header.metrics.sums:
                for lie in (_longer, _unknown, _twice):
                    other = pb.UploadHeader()
                    other.CopyFrom(header)
                    lie(other.metrics)
                    sign_upload_header(other, key)
                    with pytest.raises(MalformedMessageError) as error:
                        await original(self, _parts([pb.UploadPart(header=other), *collected[1:]]), timeout=timeout)
                    refused.append(error.value.message)
            return await original(self, _parts(collected), timeout=timeout)

        LocalLink.upload = lying  # type: ignore[method-assign]
        try:
            for name in fed.names:
                fed.start_node(name, executor=Counting())
            record = await finish(fed)
        finally:
            LocalLink.upload = original  # type: ignore[method-assign]
        assert record.rounds[-1].metrics["auc"] == AUC.value(pooled(record.roster))

    play(tmp_path, {"task": TASK, "metrics": {"share": "per-node"}, "study": {"rounds": 1}}, scenario, nodes=NODES)
    assert len(refused) == 6  # three lies in each of two rounds


def _longer(report: pb.MetricsReport) -> None:
    report.sums[0].values.append(1)


def _unknown(report: pb.MetricsReport) -> None:
    report.sums[0].name = "births"


def _twice(report: pb.MetricsReport) -> None:
    report.sums.append(report.sums[0])


async def _parts(parts: list[pb.UploadPart]) -> Any:
    for part in parts:
        yield part
