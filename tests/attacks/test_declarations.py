"""A coordinator that wants a site in two circles of one study, by showing it two lists of declarations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from node.config import NodeFile
from node.service import Node
from secure_fl.errors import RefusedError
from secure_fl.identity.member import Member
from secure_fl.protect.declarations import make_declaration
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.protect_cohort_pb2 import Declarations
from secure_fl.study.division import Division
from secure_fl.transport.wire import reference
from tests.attacks.test_attacks import INITIAL, EvilCoordinator, against_a_node

SETTINGS = {
    "study": {"rounds": 2, "initial": INITIAL},
    "task": {"name": "bearings", "network": "cells"},
    "strategy": {"name": "fedasa", "auxiliary_epochs": 0, "auxiliary_samples": 2},
    "protection": {"kind": "none", "recovery": False},
    "simulation": {"nodes": 8},
    "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 3, "attempts": 9},
}


def declarations(evil: EvilCoordinator, deep: tuple[str, ...]) -> bytes:
    """A list that sites signed: it needs one colluder that signs twice, or sites that are said to be absent."""
    said = []
    for name in deep:
        credential = NodeFile.read(evil.fed.workspace.node_file(name)).credential()
        me = Member(certificate=credential.certificate, key=credential.signing_key, vouch=lambda _: None)
        said.append(make_declaration(evil.fed.study.id, me, ["features"]))
    raw = Declarations(declarations=said).SerializeToString(deterministic=True)
    evil.models[reference(raw).sha256] = raw
    return raw


def two_circles(folder: Path) -> list[str]:
    """What a node answers when it is asked in one circle, and then in another."""
    answers: list[str] = []

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        sites = evil.fed.names
        for attempt, circle in enumerate((sites[:4], (sites[0], *sites[5:])), 1):
            raw = declarations(evil, circle)
            evil.announce(number=1, attempt=attempt, invited=circle, declared=raw)
            answers.append(await evil.outcome(attempt))

    against_a_node(folder, scenario, settings=SETTINGS)
    return answers


def test_a_site_is_in_one_circle_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert two_circles(tmp_path / "shipped") == ["uploaded", RefusedError.code]
    # Without the check, two circles that differ by all but one site: over a few rounds, whoever is in both stands out.
    settle = Division.settle

    def forgetful(self: Division, raw: bytes, **keeping: Any) -> None:
        self._declared = None
        settle(self, raw, **keeping)

    monkeypatch.setattr(Division, "settle", forgetful)
    assert two_circles(tmp_path / "without") == ["uploaded", "uploaded"]


def test_a_round_without_a_list_is_refused(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        evil.announce(number=1, attempt=1, invited=evil.fed.names[:4])
        assert await evil.answer() == RefusedError.code

    against_a_node(tmp_path, scenario, settings=SETTINGS)


def test_nobody_declares_again_once_circles_are_known(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        circle = evil.fed.names[:4]
        evil.announce(number=1, attempt=1, invited=circle, declared=declarations(evil, circle))
        await evil.next_upload(1)
        payload = pb.Payload(protection="declaring", phase="declare", version=1)
        evil.announce(number=0, attempt=9, kind=pb.ROUND_KIND_DECLARE, phase="declare", payload=payload)
        assert await evil.answer() == RefusedError.code

    against_a_node(tmp_path, scenario, settings=SETTINGS)


SPEED = {
    **SETTINGS,
    "task": {"name": "digits"},
    "strategy": {"name": "fedavg"},
    "protection": {"kind": "none", "recovery": False, "circles": "speed"},
}


def test_a_site_declares_one_thing(tmp_path: Path) -> None:
    """A coordinator says that the study is over and offers it again, for another declaration to choose from."""

    async def scenario(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        declare = pb.Payload(protection="declaring", phase="declare", version=2)
        about: dict[str, Any] = {"number": 0, "kind": pb.ROUND_KIND_DECLARE, "phase": "declare", "payload": declare}
        evil.announce(attempt=1, **about)
        assert await evil.outcome(1) == "uploaded"
        evil.announce(attempt=2, **about)
        assert await evil.outcome(2) == "uploaded"
        first, second = (upload.payload.body for upload in evil.uploads)
        assert first == second
        study = evil.fed.study
        evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=study.id, study_closed=pb.StudyClosed()))
        offer = pb.StudyOffer(settings=study.canonical())
        evil.outbox.put_nowait(pb.CoordinatorMessage(study_id=study.id, study_offer=offer))
        assert (await evil.said.get()).study_answer.accepted
        evil.announce(attempt=3, **about)
        assert await evil.outcome(3) == RefusedError.code

    against_a_node(tmp_path, scenario, settings=SPEED)
