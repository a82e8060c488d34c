"""Known answers of whole sealed rounds: from fixed seeds, the digests of everything that is uploaded and opened.

A change of any of these is a change of the protocol, and old and new nodes would not understand each other.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine import RoundMachine
from secure_fl.identity.member import Member
from secure_fl.identity.signing import SigningKey
from secure_fl.protect import signed_cohort
from secure_fl.protect.base import Contribution, RequestKind, RoundContext
from secure_fl.protect.memory import ProcessMemory
from secure_fl.protect.sealed import Sealed
from secure_fl.protect.sealed_node import SealedNode
from secure_fl.protect.sealed_terms import Terms
from secure_fl.protect.sketch import SIZE
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.rpc.protect_sealed_pb2 import SealedUpload
from secure_fl.wire import parse
from tests.library.cohorts import InMemory, layout

SEALED = Sealed()
NAMES = ("n0", "n1", "n2", "n3", "n4")
SIZE_OF_BODY = 2500  # more than one element of the ring


def _certificate(der: bytes) -> Any:
    """Certificates are made with fresh keys; in their place, a name and a key that follows from it."""
    name = der.decode().removeprefix("certificate of ")
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(der).digest()))
    return SimpleNamespace(der=der, name=name, fingerprint=hashlib.sha256(der).hexdigest(), signing_public=key.public)


def _member(name: str) -> Member:
    der = f"certificate of {name}".encode()
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(der).digest()))
    return Member(certificate=_certificate(der), key=key, vouch=lambda _: None)


def _context(kind: RequestKind, **changes: Any) -> RoundContext:
    return RoundContext(
        study_id="5a" * 32,
        round=3,
        attempt=2,
        base_model=bytes(range(32)),
        invited=NAMES,
        roster={name: _member(name).certificate.fingerprint for name in NAMES},
        layout=layout(body=SIZE_OF_BODY, head=3),
        kind=kind,
        bits=16,
        colluders=1,
        min_cohort=3 if kind is RequestKind.SUM else 4,
        **changes,
    )


def _contribution(place: int, about: RoundContext) -> Contribution:
    body = (np.arange(SIZE_OF_BODY) * (place + 1) % 65535 - 32767).astype(np.int32)
    head = {"head": np.array([place, -place, 7], np.int32)} if place < 4 else {}
    return Contribution(
        blocks={"body": body, **head},
        weight=64,
        sketch=np.full(SIZE, place, np.int32) if about.attention else None,
        attend=lambda there: dict(zip(sorted(there), (13, 13, 13, 13, 12), strict=True)),
    )


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def _play(about: RoundContext, patch: pytest.MonkeyPatch) -> dict[str, str]:
    patch.setattr(signed_cohort, "_certificate", _certificate)
    nodes = {
        name: SealedNode(
            about, _member(name), _contribution(place, about), UnsafeSeededRandomness(11, name), ProcessMemory()
        )
        for place, name in enumerate(NAMES)
    }
    machine = RoundMachine(SEALED, about)
    machine.begin()
    found: dict[str, str] = {}
    opened: Any = None
    while machine.phase:
        phase = machine.phase
        answers = {name: nodes[name].answer(phase, machine.asked[name]) for name in sorted(machine.waiting)}
        if phase == "upload":
            uploads = [parse(SealedUpload, answer.body) for answer in answers.values()]
            found["y"] = _digest(*(answer.bulk for answer in answers.values()))
            found["envelopes"] = _digest(*(e.SerializeToString() for upload in uploads for e in upload.envelopes))
            found["commits"] = _digest(*(upload.commit.SerializeToString() for upload in uploads))
        elif answers:
            found[phase] = _digest(*(a.body + a.bulk for a in answers.values()))
        for name, answer in answers.items():
            machine.accept(name, phase, type(answer)(body=answer.body), InMemory(answer.bulk))
        opened = machine.close()
    exact: Any = sum(_contribution(place, about).blocks["body"].astype(np.int64) for place in range(5))
    if about.kind is RequestKind.SUM:
        total = opened.blocks["body"].total
    else:
        weights = (13, 13, 13, 13, 12)
        exact = sum(w * _contribution(p, about).blocks["body"].astype(np.int64) for p, w in enumerate(weights))
        total = nodes["n2"].combination()["body"].total
    assert np.abs(total - exact).max() <= Terms.of(about).noise
    blocks = opened.blocks if about.kind is RequestKind.SUM else nodes["n2"].combination()
    found["opened"] = _digest(*(blocks[name].total.astype("<i8").tobytes() for name in sorted(blocks)))
    return found


KNOWN: dict[str, tuple[RequestKind, dict[str, Any], dict[str, str]]] = {
    "sum": (
        RequestKind.SUM,
        {},
        {
            "advertise": "5027dc473c91fe88e2cece48da149848",
            "y": "677c61b96c8a497c037179722fa6b4c6",
            "envelopes": "d9570b0d055f8d5738bbce42b2befeb3",
            "commits": "c642caa22dd92342cde5fe5acf814dee",
            "open": "4a03c35ffb2df24e47ad4824d1d9e13d",
            "opened": "4eeed7a51e3e380b2dca3e8005e0fff7",
        },
    ),
    "combine": (
        RequestKind.COMBINE,
        {"recompute": True},
        {
            "advertise": "4a9703d3747614e4a85d7447ab26fae5",
            "y": "882fb39bf6a27dd1c1f7272ef8a3a7b8",
            "envelopes": "73d18afafd68d74b460ffbdbffd528c1",
            "commits": "da09d8a992121cf25f9dea510d12b041",
            "row": "c144d9a790b54f3b0dacbb7ee2e36d0b",
            "open": "b93fbf29cd5cc4d781ed6e4786fc84f5",
            "deliver": "e3b0c44298fc1c149afbf4c8996fb924",
            "opened": "95c564f898e5efabf4f159408a46d111",
        },
    ),
    "attention": (
        RequestKind.COMBINE,
        {"attention": True},
        {
            "advertise": "48fdf0f5c20fb89151c17bfa3ab19068",
            "y": "87f259273e0f70d3555dff2537df0c26",
            "envelopes": "03698b37a73c7c6f32d3e8769a0c1f4a",
            "commits": "ffa03fec72852ac9fe37b5f7170cfc13",
            "score": "c8ca3bd775c7665d549313cce3780d61",
            "row": "b31e2c1ff68b851bb4d2082ac205463f",
            "open": "872359b98a7944c374e16de3f04a00fd",
            "deliver": "e3b0c44298fc1c149afbf4c8996fb924",
            "opened": "87a753ca884dfe8bb02486142ee744f2",
        },
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_a_round_from_fixed_seeds_has_known_answers(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, changes, expected = KNOWN[case]
    assert _play(_context(kind, **changes), monkeypatch) == expected
