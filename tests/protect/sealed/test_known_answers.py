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
from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer
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
            uploads = [parse(UploadAnswer, answer.body) for answer in answers.values()]
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
            "advertise": "2404f07e4e9ff5d37fd6936e671192f3",
            "y": "6858de7fff0d6119953a27fcf35bf854",
            "envelopes": "33b00089a8b35d8aca0180242827f679",
            "commits": "bfcc0134af354cd9a85b5f149e2f340d",
            "open": "4a03c35ffb2df24e47ad4824d1d9e13d",
            "opened": "4eeed7a51e3e380b2dca3e8005e0fff7",
        },
    ),
    "combine": (
        Sealed(SealedSettings(recompute=True)),
        RequestKind.COMBINE,
        {},
        {
            "advertise": "5690e8e1ead96ed5bf3c71dd6036f26b",
            "y": "e3a2acff47bb7cfd6b65b7ad696a44d7",
            "envelopes": "932812926c60d88634613c381d9e079c",
            "commits": "6c9d2f1c5ff85529cfca59c3f49eac08",
            "row": "f3467837e9d7968d49f20bdc37a8ed4a",
            "open": "0b3ba4717531e64b47883ee163922d4e",
            "deliver": "e3b0c44298fc1c149afbf4c8996fb924",
            "opened": "95c564f898e5efabf4f159408a46d111",
        },
    ),
    "distances": (
        SEALED,
        RequestKind.COMBINE,
        {"compares": True},
        {
            "advertise": "1f8f87b39a5a04bf703c4db99812f791",
            "y": "bca9a8f0f17ae3803511bc911f0535e9",
            "envelopes": "a5d23fd4ebc60b745ba082a17c24b138",
            "commits": "28d4d7c5b4bbb03173c6aafaccbb1b32",
            "score": "7ef8ab9d675fb9a1645313ca5063ed29",
            "row": "243be708f5f82e23e725d613a3510037",
            "open": "a4de01fcdf3668016170984823d57214",
            "deliver": "e3b0c44298fc1c149afbf4c8996fb924",
            "opened": "87a753ca884dfe8bb02486142ee744f2",
        },
    ),
}


@pytest.mark.parametrize("case", KNOWN)
def test_a_round_from_fixed_seeds_has_known_answers(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    protection, kind, changes, expected = KNOWN[case]
    assert _play(protection, _context(protection, kind, **changes), monkeypatch) == expected
