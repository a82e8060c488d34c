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
from secure_fl.aggregation import RequestKind
from secure_fl.identity.member import Member
from secure_fl.identity.signing import SigningKey
from secure_fl.messages import parse
from secure_fl.protect.cohort import signed
from secure_fl.protect.combining import CombineContribution, node_half
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.release.sketch import SIZE
from secure_fl.protect.sealed.protection import Sealed, SealedSettings
from secure_fl.protect.sealed.terms import Terms
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.rpc.protect_sealed_pb2 import SealedUpload
from tests.protect.cohorts import InMemory, host, layout

SEALED = Sealed(SealedSettings(recompute=False))
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


def _context(protection: Sealed, kind: RequestKind, **changes: Any) -> RoundContext:
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
        protection=protection.name,
        payload_version=protection.payload_version,
        settings=protection.canonical_settings,
        **changes,
    )


def _contribution(place: int, about: RoundContext) -> CombineContribution:
    body = (np.arange(SIZE_OF_BODY) * (place + 1) % 65535 - 32767).astype(np.int32)
    head = {"head": np.array([place, -place, 7], np.int32)} if place < 4 else {}
    return CombineContribution(
        blocks={"body": body, **head},
        weight=64,
        sketch=np.full(SIZE, place, np.int32) if about.compares else None,
        attend=lambda there: dict(zip(sorted(there), (13, 13, 13, 13, 12), strict=True)),
    )


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:32]


def _play(protection: Sealed, about: RoundContext, patch: pytest.MonkeyPatch) -> dict[str, str]:
    patch.setattr(signed, "_certificate", _certificate)
    nodes: dict[str, Any] = {
        name: node_half(
            protection, about, _contribution(place, about), host(_member(name), UnsafeSeededRandomness(11, name))
        )
        for place, name in enumerate(NAMES)
    }
    machine = RoundMachine(protection, about)
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


KNOWN: dict[str, tuple[Sealed, RequestKind, dict[str, Any], dict[str, str]]] = {
    "sum": (
        SEALED,
        RequestKind.SUM,
        {},
        {
            "advertise": "9aa380b33c05fc90307f1e54acbf124f",
            "y": "e990ccae294c0deb13f9c64e0aa9f3e6",
            "envelopes": "88f41411862c90133a2346b8c6bda019",
            "commits": "58b5d96be8d16928308bbecf05e84c01",
            "open": "4a03c35ffb2df24e47ad4824d1d9e13d",
            "opened": "4eeed7a51e3e380b2dca3e8005e0fff7",
        },
    ),
    "combine": (
        Sealed(SealedSettings(recompute=True)),
        RequestKind.COMBINE,
        {},
        {
            "advertise": "8bbf59f65ec4aba00378bf4af052f514",
            "y": "7fe0559b5c471cbb28dc4da796c2a27b",
            "envelopes": "98652f328e5f959254c0b99e9d23e210",
            "commits": "60f529e34a682b5e54e1444168e76a86",
            "row": "57a42c451f008099d809076ff715ff89",
            "open": "ddda3be2c4cb5405b8a639f2c6dfda25",
            "deliver": "e3b0c44298fc1c149afbf4c8996fb924",
            "opened": "95c564f898e5efabf4f159408a46d111",
        },
    ),
    "distances": (
        SEALED,
        RequestKind.COMBINE,
        {"compares": True},
        {
            "advertise": "719382d5c0e6c9eec72d58e72ac7582d",
            "y": "41a0b63da485e336a087358f3db2f833",
            "envelopes": "853f167a3d786658a04918683bf47345",
            "commits": "38c7550ec679ffc60cc01bc601f63212",
            "score": "ecb0cffe896709b24ab96723ed6dc6e6",
            "row": "d047518731af42c38bfba01308dc2142",
            "open": "48bc370815bbe04526602c09a4560d3b",
            "deliver": "e3b0c44298fc1c149afbf4c8996fb924",
            "opened": "87a753ca884dfe8bb02486142ee744f2",
        },
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_a_round_from_fixed_seeds_has_known_answers(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    protection, kind, changes, expected = KNOWN[case]
    assert _play(protection, _context(protection, kind, **changes), monkeypatch) == expected
