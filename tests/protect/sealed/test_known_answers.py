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
            "advertise": "f49bcaa6e38f578f521cd51231d42dd3",
            "y": "ac2e5520e780312da77cb7dd22542d9c",
            "envelopes": "1347dd970b0d11d5af87333ece66fcd3",
            "commits": "4ac579fb6af75a30607790529403864d",
            "open": "4a03c35ffb2df24e47ad4824d1d9e13d",
            "opened": "4eeed7a51e3e380b2dca3e8005e0fff7",
        },
    ),
    "combine": (
        Sealed(SealedSettings(recompute=True)),
        RequestKind.COMBINE,
        {},
        {
            "advertise": "57708e3e5ed65984991f14a378a58027",
            "y": "a4b12b90de525e638439c615d201ed21",
            "envelopes": "3361812af8b3c10caceff5c6e98dd0e0",
            "commits": "f8c1c60529fef44e5bc2aa44b2928d04",
            "row": "972a83d99fe8f852b8d912debd3a2ae4",
            "open": "24ac8c05328080258cff7fe1ee9bb98f",
            "deliver": "e3b0c44298fc1c149afbf4c8996fb924",
            "opened": "95c564f898e5efabf4f159408a46d111",
        },
    ),
    "distances": (
        SEALED,
        RequestKind.COMBINE,
        {"compares": True},
        {
            "advertise": "8b7929c1780f7fb076ff367a5a1ae3e3",
            "y": "0db99bcac2fcb8d7faa1c16bc7312d30",
            "envelopes": "5da170c9bce31624654cb883d8a4df5c",
            "commits": "ffd866d6522fa44940aff617f57f1174",
            "score": "096baed61e8b24226992a63ce0520c01",
            "row": "9b3f6a908da8033b22a4c2f8878f9457",
            "open": "21a2e1f9b4cec8da99afd97856e5f8db",
            "deliver": "e3b0c44298fc1c149afbf4c8996fb924",
            "opened": "87a753ca884dfe8bb02486142ee744f2",
        },
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_a_round_from_fixed_seeds_has_known_answers(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    protection, kind, changes, expected = KNOWN[case]
    assert _play(protection, _context(protection, kind, **changes), monkeypatch) == expected
