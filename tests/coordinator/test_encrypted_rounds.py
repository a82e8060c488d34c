"""`encrypted` in a federation: sites that have to agree, a key that no message shows, a coordinator that is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message as ProtoMessage

from node.config import PolicySection
from secure_fl.privacy.ledger import read_ledger
from secure_fl.protect.encrypted.party import EncryptedParty
from secure_fl.protect.encrypted.scheme import Key
from secure_fl.transport import local
from tests.coordinator.test_study_runner import finish, play, start_all
from tests.support.encrypted_party import unseal
from tests.support.federation import Federation, Killed
from tests.support.training import Faults

ENCRYPTED = {"kind": "encrypted", "recovery": True}
OTHERS = ("site-02", "site-03", "site-04")
KEY_BYTES = 64  # of a key's thousands, to look for


@pytest.mark.parametrize(
    ("settings", "policy", "logged"),
    [
        ({}, {"protections": ["masked", "sealed"]}, "protection 'encrypted' is not allowed by [policy] protections → "),
        (
            {"recompute": False},
            {"exceptions": ["changing-cohorts"]},
            "honest-coordinator: not among [policy] exceptions",
        ),
        ({}, {"exceptions": []}, "changing-cohorts: not among [policy] exceptions"),
    ],
)
def test_a_site_that_did_not_agree_stays_out_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], policy: dict[str, Any], logged: str
) -> None:
    async def scenario(fed: Federation) -> None:
        fed.set_policy("site-01", **policy)
        start_all(fed)
        record = await finish(fed)
        assert all(round_.cohort == OTHERS for round_ in record.rounds)
        # One line at the site; one word for the lead, who asks the site.
        (line,) = [entry.getMessage() for entry in caplog.records if logged in entry.getMessage()]
        assert "secure-fl study show" in line
        assert ("refused", {"study_id": fed.study.id, "node": "site-01", "reason": "Refused"}) in fed.events
        ledger = list(read_ledger(fed.workspace.node_folder("site-01") / "ledger.jsonl"))
        assert [entry.kind for entry in ledger] == ["opened"]

    play(tmp_path, {"protection": {**ENCRYPTED, **settings}, "rounds": {"gather": 0.5}}, scenario)


def test_a_node_file_that_says_nothing_does_not_allow_it() -> None:
    assert "encrypted" not in PolicySection().protections
    assert {"masked", "sealed"} <= set(PolicySection().protections)


@pytest.mark.parametrize("recompute", [True, False])
def test_every_site_that_agreed_takes_part(tmp_path: Path, recompute: bool) -> None:
    async def scenario(fed: Federation) -> None:
        start_all(fed)
        record = await finish(fed)
        assert all(round_.cohort == fed.names for round_ in record.rounds)

    play(tmp_path, {"protection": {**ENCRYPTED, "recompute": recompute}}, scenario)


@pytest.mark.parametrize("sealed", [True, False])
def test_no_message_and_no_file_of_the_coordinator_has_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    """Once as it is; and once without envelopes, when the same search finds it on the wire and on the disk."""
    keys: list[bytes] = []
    crossed: list[bytes] = []
    kept: set[bytes] = set()
    generate, cross, made = Key.generate, local._cross, EncryptedParty.__init__

    def noted(scheme: Any) -> Key:
        key = generate(scheme)
        keys.append(key.raw[:KEY_BYTES])
        return key

    def overheard(message: ProtoMessage) -> ProtoMessage:
        crossed.append(message.SerializeToString())
        return cross(message)

    def open_party(self: EncryptedParty, *arguments: Any) -> None:
        made(self, *arguments)
        if not sealed:
            unseal(self)

    monkeypatch.setattr(Key, "generate", noted)
    monkeypatch.setattr(local, "_cross", overheard)
    monkeypatch.setattr(EncryptedParty, "__init__", open_party)

    async def scenario(fed: Federation) -> None:
        start_all(fed)
        study = asyncio.create_task(finish(fed))
        folder = fed.workspace.coordinator_file.parent
        while not study.done():
            kept.update(path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.exists())
            await asyncio.sleep(0.02)
        await study
        assert len(keys) == 3  # for each round, and the measurement
        assert len(crossed) > 100
        assert any(len(content) > 10_000 for content in kept)  # uploads were on this disk, for a while
        assert any(key in message for key in keys for message in crossed) == (not sealed)
        assert any(key in content for key in keys for content in kept) == (not sealed)

    play(tmp_path, {"protection": ENCRYPTED}, scenario)


@pytest.mark.parametrize(
    ("point", "occurrence"),
    [("after:add_answer", 5), ("before:add_answer", 14)],
    ids=["key", "open"],
)
def test_a_coordinator_that_is_killed_goes_on_with_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, occurrence: int
) -> None:
    made: list[bytes] = []
    generate = Key.generate

    def noted(scheme: Any) -> Key:
        key = generate(scheme)
        made.append(key.id)
        return key

    monkeypatch.setattr(Key, "generate", noted)

    async def run(folder: Path, faults: Faults | None) -> bytes:
        fed = Federation(folder, {"protection": ENCRYPTED})
        start_all(fed)
        if faults is not None:
            with pytest.raises(Killed):
                await fed.coordinate(faults)
        record = await fed.coordinate()
        await fed.close()
        assert record is not None
        assert [entry.attempts for entry in record.rounds] == [1, 1, 1]
        return fed.model()

    async def scenario() -> None:
        calm = await run(tmp_path / "calm", None)
        made.clear()
        assert await run(tmp_path / "run", Faults(point, occurrence)) == calm
        assert len(made) == 3  # Nothing was begun again.

    asyncio.run(asyncio.wait_for(scenario(), 60))
