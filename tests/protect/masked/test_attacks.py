"""A coordinator that cheats together with members of a circle, through the real messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TypeVar

import numpy as np
import pytest
from google.protobuf.message import Message as ProtoMessage

from coordinator.machine import RoundMachine
from secure_fl.errors import CertificateError, CohortTooSmallError, ProtectionError, SecureFLError, SignatureError
from secure_fl.identity.certificates import Certificate
from secure_fl.protect.cohort import minima, signed
from secure_fl.protect.cohort.signed import SignedCohort
from secure_fl.protect.contract import Message, OpenedSums, RoundContext
from secure_fl.protect.masked.manifest import MANIFESTS
from secure_fl.protect.masked.node import CircleNode
from secure_fl.protect.masked.protection import Masked
from secure_fl.protect.masked.statements import mask_keys, sign_commit
from secure_fl.protect.primitives.masks import add_masks
from secure_fl.protect.primitives.packing import WORD, Packing, Words
from secure_fl.rpc.protect_cohort_pb2 import Manifest, Roster
from secure_fl.rpc.protect_masked_pb2 import CircleCommit, CircleCommits
from tests.protect.cohorts import InMemory, context, contribution, halves, host, layout
from tests.protect.members import enrol, member

MASKED = Masked()
NAMES = ("n0", "n1", "n2", "n3", "n4")
P = TypeVar("P", bound=ProtoMessage)


def edited(kind: type[P], message: Message, change: Callable[[P], object]) -> Message:
    """A message with something changed inside."""
    body = kind()
    body.ParseFromString(message.body)
    change(body)
    return replace(message, body=body.SerializeToString(deterministic=True))


def added(uploads: Mapping[str, Words], names: Sequence[str]) -> Words:
    """What the coordinator makes of some uploads."""
    total: Words = np.zeros_like(uploads[names[0]])
    for name in names:
        total += uploads[name]
    return total


class Table:
    """An attempt of a circle of five, up to a phase, with everything that was said on the table."""

    def __init__(self, about: RoundContext | None = None) -> None:
        self.about = about or context(*NAMES, whole=True, partial=False)
        self.values = {
            name: contribution(64, {}, body=[index, 20, -3], head=[4, 5])
            for index, name in enumerate(self.about.invited)
        }
        self.nodes = halves(MASKED, self.about, self.values)
        self.machine = RoundMachine(MASKED, self.about)
        self.machine.begin()
        self.answers: dict[tuple[str, str], Message] = {}

    def until(self, phase: str) -> Table:
        """Play honestly up to the beginning of `phase`."""
        while self.machine.phase != phase:
            self.play()
        return self

    def play(self) -> object:
        """One phase."""
        now = self.machine.phase
        for name in sorted(self.machine.waiting):
            answer = self.nodes[name].answer(now, self.machine.asked[name])
            self.answers[now, name] = answer
            self.machine.accept(name, now, replace(answer, bulk=b""), InMemory(answer.bulk))
        return self.machine.close()

    def refuses(self, name: str, message: Message, error: type[SecureFLError] = ProtectionError) -> None:
        """The node answers with an error now, and nothing in this attempt ever after."""
        with pytest.raises(error):
            self.nodes[name].answer(self.machine.phase, message)
        for phase in ("advertise", "commit", "upload"):
            with pytest.raises(ProtectionError):
                self.nodes[name].answer(phase, Message())

    def uploads(self) -> dict[str, Words]:
        """What everybody sent in the end."""
        return {name: np.frombuffer(self.answers["upload", name].bulk, WORD) for name in self.about.invited}


# --- arithmetic: only the whole circle is free of masks ----------------------------------------------------------


def test_no_part_of_a_circle_adds_up_to_anything() -> None:
    """Whatever the coordinator adds, with any signs: only the whole circle gives values of the study's grid."""
    table = Table(context(*NAMES, blocks=layout(body=300), whole=True))
    table.values = {name: contribution(64, {}, body=[1000] * 300) for name in NAMES}
    table.nodes = halves(MASKED, table.about, table.values)
    table.until("upload")
    table.play()
    uploads = table.uploads()
    packing = Packing(bits=16, contributors=5)
    largest = np.uint64(2 ** (packing.lanes * packing.lane_bits))  # a sum of values leaves the last bits free
    for size in range(1, 6):
        for part in combinations(NAMES, size):
            total = added(uploads, part)[:-1]
            looks_like_values = bool((total < largest).all())
            assert looks_like_values == (size == 5), part


def test_colluders_learn_the_sum_of_the_others_and_no_more() -> None:
    """Two of five give the coordinator all their keys: the masks among the other three are still there."""
    table = Table(context(*NAMES, blocks=layout(body=300), whole=True))
    table.values = {name: contribution(64, {}, body=[1000] * 300) for name in NAMES}
    table.nodes = halves(MASKED, table.about, table.values)
    table.until("commit")
    roster = table.machine.asked["n0"].body
    keys = {name: table.nodes[name]._mask_key for name in ("n0", "n1")}  # type: ignore[attr-defined]
    table.until("upload")
    table.play()
    parsed = Roster()
    parsed.ParseFromString(roster)
    cohort = SignedCohort.read(table.about, parsed.manifests, MANIFESTS)
    uploads = {name: words.copy() for name, words in table.uploads().items()}
    for colluder, key in keys.items():
        plus, minus = mask_keys(key, cohort, colluder)
        others = [name for name in NAMES if name != colluder]
        # What the colluder added towards a peer the peer subtracted: undo it in the peer's upload.
        after, before = [n for n in others if n > colluder], [n for n in others if n < colluder]
        for name, mask in zip(after, plus, strict=True):
            add_masks(uploads[name], plus=[mask])
        for name, mask in zip(before, minus, strict=True):
            add_masks(uploads[name], minus=[mask])
    honest = ("n2", "n3", "n4")
    packing = Packing(bits=16, contributors=5)
    plain = np.empty(100, WORD)
    packing.pack(np.full(300, 1000, np.int32), plain)
    assert np.array_equal(added(uploads, honest)[:-1], 3 * plain)
    for size in (1, 2):
        for part in combinations(honest, size):
            seen = added(uploads, part)[:-1]
            assert not (seen == size * plain).any()


def test_two_attempts_with_the_same_integers_have_nothing_in_common_but_the_sum() -> None:
    first, second = (Table(context(*NAMES, whole=True, attempt=attempt)) for attempt in (1, 2))
    sums = []
    for table in (first, second):
        opened = table.until("upload").play()
        assert isinstance(opened, OpenedSums)
        sums.append({name: block.total.tolist() for name, block in opened.blocks.items()})
    assert sums[0] == sums[1]
    for name in NAMES:
        assert not (first.uploads()[name] == second.uploads()[name]).any()


# --- who is there -------------------------------------------------------------------------------------------------


def test_a_node_masks_for_the_whole_circle_only(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table().until("commit")
    fewer = edited(Roster, table.machine.asked["n0"], lambda roster: roster.manifests.pop())
    table.refuses("n0", fewer, CohortTooSmallError)
    # Taken out, the node masks for four of five, as it was told.
    for module in (minima, signed):
        monkeypatch.setattr(module, "require_whole", lambda *_: None)
    again = Table().until("commit")
    fewer = edited(Roster, again.machine.asked["n0"], lambda roster: roster.manifests.pop())
    assert again.nodes["n0"].answer("commit", fewer).pledged


def test_a_node_is_shown_its_own_manifest_and_the_rosters_certificates() -> None:
    stranger = enrol("circle-twin")
    about = context(*NAMES, whole=True)

    def another(roster: Roster) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        forged = signed.make_manifest(
            about,
            host(stranger),
            protocol="circle",
            blocks=("body", "head"),
            extension=MANIFESTS.write(X25519PrivateKey.generate()),
        )
        forged.node = "n1"  # by its own certificate, under another's name
        roster.manifests[1].CopyFrom(forged)

    table = Table(about).until("commit")
    table.refuses("n0", edited(Roster, table.machine.asked["n0"], another), CertificateError)

    table = Table(about).until("commit")
    mine = edited(Roster, table.machine.asked["n0"], lambda roster: roster.manifests[0].CopyFrom(Manifest(node="n0")))
    table.refuses("n0", mine)


def test_a_node_believes_nobody_whom_the_consortium_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    def vouch(peer: Certificate) -> None:
        if peer.name == "n3":
            raise CertificateError("revoked")

    table = Table()
    node = table.nodes["n0"]
    assert isinstance(node, CircleNode)
    node._host = replace(node._host, me=replace(member("n0"), vouch=vouch))
    table.until("commit")
    table.refuses("n0", table.machine.asked["n0"], CertificateError)


def test_two_members_do_not_share_a_key() -> None:
    """Another's public key shown as one's own makes equal secrets; names in the derivation keep the masks apart."""
    table = Table().until("commit")

    def copied(roster: Roster) -> None:
        roster.manifests[1].extension = roster.manifests[2].extension

    table.refuses("n0", edited(Roster, table.machine.asked["n0"], copied), SignatureError)


def test_another_attempts_manifests_are_no_use() -> None:
    earlier = Table(context(*NAMES, whole=True, attempt=1)).until("commit")
    table = Table(context(*NAMES, whole=True, attempt=2)).until("commit")
    old = Roster()
    old.ParseFromString(earlier.machine.asked["n0"].body)

    def replayed(roster: Roster) -> None:
        roster.manifests[3].CopyFrom(old.manifests[3])

    table.refuses("n0", edited(Roster, table.machine.asked["n0"], replayed), SignatureError)


# --- nobody chooses last ------------------------------------------------------------------------------------------


def test_a_node_uploads_only_once_everybody_is_bound() -> None:
    for change in (
        lambda commits: commits.commits.pop(),
        lambda commits: commits.commits.add().CopyFrom(commits.commits[0]),
        lambda commits: commits.commits[1].CopyFrom(commits.commits[2]),
    ):
        table = Table().until("upload")
        table.refuses("n0", edited(CircleCommits, table.machine.asked["n0"], change))
    table = Table().until("upload")

    def another(commits: CircleCommits) -> None:
        commits.commits[4].upload = bytes(32)

    table.refuses("n0", edited(CircleCommits, table.machine.asked["n0"], another), SignatureError)


def test_a_node_does_not_upload_where_it_is_said_to_have_committed_to_something_else() -> None:
    table = Table().until("upload")
    node = table.nodes["n0"]
    assert isinstance(node, CircleNode)
    forged = sign_commit(member("n0"), node._cohort, bytes(32))
    table.refuses(
        "n0",
        edited(CircleCommits, table.machine.asked["n0"], lambda commits: commits.commits[0].CopyFrom(forged)),
    )


def test_an_upload_is_the_one_that_was_committed_to() -> None:
    table = Table().until("upload")
    for name in NAMES[:-1]:
        answer = table.nodes[name].answer("upload", table.machine.asked[name])
        table.machine.accept(name, "upload", replace(answer, bulk=b""), InMemory(answer.bulk))
    answer = table.nodes["n4"].answer("upload", table.machine.asked["n4"])
    chosen = bytearray(answer.bulk)
    chosen[0] ^= 1
    with pytest.raises(ProtectionError, match="committed"):
        table.machine.accept("n4", "upload", Message(), InMemory(bytes(chosen)))
    with pytest.raises(ProtectionError, match="committed"):
        table.machine.accept("n4", "upload", Message(), InMemory(bytes(chosen) + bytes(8)))
    table.machine.accept("n4", "upload", Message(), InMemory(bytes(answer.bulk)))
    assert isinstance(table.machine.close(), OpenedSums)


def test_nobody_commits_for_another() -> None:
    table = Table().until("commit")
    said = table.nodes["n0"].answer("commit", table.machine.asked["n0"])
    with pytest.raises(ProtectionError, match="another"):
        table.machine.accept("n1", "commit", said, InMemory(b""))
    forged = edited(CircleCommit, said, lambda commit: commit.MergeFrom(CircleCommit(upload=bytes(32))))
    with pytest.raises(SignatureError):
        table.machine.accept("n0", "commit", forged, InMemory(b""))


# --- nonsense -----------------------------------------------------------------------------------------------------


def test_a_weight_that_no_circle_can_have_voids_the_attempt() -> None:
    for weight in (0, 1, 2**63):
        table = Table()
        node = table.nodes["n2"]
        assert isinstance(node, CircleNode)
        node._weight = weight
        table.until("upload")
        with pytest.raises(ProtectionError, match="weight"):
            table.play()


def test_a_value_beyond_the_grid_voids_the_attempt() -> None:
    """A masked word may hold anything. In a lane that the circle cannot have filled it is noticed."""
    table = Table().until("commit")
    pack = Packing.pack

    def nonsense(packing: Packing, values: np.ndarray, out: np.ndarray) -> None:
        pack(packing, values, out)
        out[0] += np.uint64(2 ** (packing.lane_bits - 1))

    node = table.nodes["n1"]
    Packing.pack = nonsense  # type: ignore[method-assign, assignment]
    try:
        said = node.answer("commit", table.machine.asked["n1"])
    finally:
        Packing.pack = pack  # type: ignore[method-assign]
    table.machine.accept("n1", "commit", replace(said, bulk=b""), InMemory(b""))
    table.play()
    with pytest.raises(ProtectionError, match="larger"):
        table.play()
