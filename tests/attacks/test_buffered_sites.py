"""Sites that do not wait for each other: models of the coordinator's choosing, and work that would count twice.

Every attack ends in a typed error, and succeeds without the one check that stops it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.agreements import KnownAgreements
from coordinator.machine import RoundMachine
from node.carried import CarriedWork
from node.store import StudyStore
from secure_fl.errors import LedgerError, ProtectionError, RefusedError, ReleaseRefusedError, SecureFLError
from secure_fl.identity.certificates import bind, tls_public_bytes
from secure_fl.identity.member import Member
from secure_fl.messages import parse
from secure_fl.protect.cohort import agreements as signed_agreements
from secure_fl.protect.cohort import signed
from secure_fl.protect.cohort.agreements import agreement_in, who_agreed
from secure_fl.protect.combining import CombineContribution, node_half
from secure_fl.protect.contract import Host, OpenedSums, Protection, RoundContext
from secure_fl.protect.encrypted.protection import Encrypted
from secure_fl.protect.past import CHANGING_COHORTS, Known
from secure_fl.protect.sealed.protection import Sealed
from secure_fl.protect.uploads import coordinator, manifest, party
from secure_fl.protect.versions import Origin, Version, require_one_history
from secure_fl.results.record import StudyRecord
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.protect_cohort_pb2 import Agreement, Agreements, Manifest
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from tests.coordinator.test_site_flushes import entries_of, own_plans, play, require_sent_once
from tests.protect.cohorts import InMemory, context, contribution, host
from tests.protect.members import member
from tests.support.federation import Federation

both = pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
protections = pytest.mark.parametrize("protection", [Sealed(), Encrypted()], ids=["sealed", "encrypted"])

NAMES = ("n0", "n1", "n2", "n3", "n4")
VICTIM = "n0"


def version(number: int, of: str = "everybody") -> Version:
    """A version, as it is shown to these."""
    return Version(number=number, digest=hashlib.sha256(f"{number} {of}".encode()).digest())


NEWEST = 5
HISTORY = tuple(version(number) for number in range(NEWEST + 1))


def flush(protection: Protection, *, staleness: int = 3) -> RoundContext:
    """The flush that makes version 6."""
    about = context(*NAMES, protection=protection)
    return replace(about, round=NEWEST + 1, version=NEWEST, staleness=staleness, base_model=HISTORY[-1].digest)


def given(place: int) -> CombineContribution:
    return contribution(64, body=[place, 2, 3], head=[4, 5])


class OpenedSites:
    """All sites at one table, with a coordinator that passes on whatever it is given."""

    def __init__(
        self,
        about: RoundContext,
        made_from: Mapping[str, Version],
        told: Mapping[str, tuple[Version, ...]],
    ) -> None:
        self.names = about.invited
        self.machine = RoundMachine(protection_of(about), about)
        self.machine.begin()
        self.halves = {}
        for place, name in enumerate(self.names):
            oldest = about.version - (about.staleness or 0)
            mine = replace(
                contribution(64, body=[place, 2, 3], head=[4, 5]), made_from=made_from.get(name, HISTORY[-1])
            )
            recent = tuple(one for one in told.get(name, HISTORY) if one.number >= oldest)
            its = replace(host(name), exceptions=frozenset({CHANGING_COHORTS}), told=recent)
            self.halves[name] = node_half(protection_of(about), about, mine, its)

    def phase(self) -> None:
        """Everybody who is asked answers."""
        phase = self.machine.phase
        for name in sorted(self.machine.waiting):
            answer = self.halves[name].answer(phase, self.machine.asked[name])
            self.machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))

    def opened(self) -> OpenedSums:
        """Phase by phase to the end."""
        result = None
        while result is None:
            self.phase()
            result = self.machine.close()
        assert isinstance(result, OpenedSums)
        return result


def protection_of(about: RoundContext) -> Protection:
    return Sealed() if about.protection == "sealed" else Encrypted()


@protections
def test_work_of_several_versions_of_one_history_is_opened_together(protection: Protection) -> None:
    made_from = {"n1": HISTORY[3], "n2": HISTORY[2]}
    # One was away when the older version was the newest: enough others know it.
    result = OpenedSites(flush(protection), made_from, {"n4": HISTORY[4:]}).opened()
    assert result.cohort == NAMES
    assert result.bases == {"n0": 5, "n1": 3, "n2": 2, "n3": 5, "n4": 5}
    assert [round(value) for value in result.blocks["body"].total] == [0 + 1 + 2 + 3 + 4, 10, 15]


@both
@protections
def test_a_version_that_is_shown_to_one_site_only_opens_nothing(
    monkeypatch: pytest.MonkeyPatch, protection: Protection, checked: bool
) -> None:
    """The classic attack: others train from models that make their updates vanish, and what is left is one site's.

    The victim was shown a version 3 of its own. Its update waits, and enters a flush with those of the others.
    """
    evil = version(3, VICTIM)
    told = {VICTIM: (*HISTORY[:3], evil, *HISTORY[4:])}
    monkeypatch.setattr(coordinator, "usable", lambda origins, **_: frozenset(origins))  # It passes the victim on.
    if not checked:
        monkeypatch.setattr(party, "require_one_history", lambda *_, **__: None)
    table = OpenedSites(flush(protection), {VICTIM: evil}, told)
    if not checked:
        assert VICTIM in table.opened().cohort
        return
    table.phase()
    table.machine.close()
    asked = table.machine.asked
    assert asked.keys() == (set(NAMES) if protection.name == "sealed" else {next(iter(asked))})  # or who makes the key
    for name in asked:
        with pytest.raises(ProtectionError, match="version 3"):
            table.halves[name].answer(table.machine.phase, asked[name])


def test_each_site_finds_it_out_by_itself() -> None:
    """The victim by the number of those who know its version, everybody else by the digest it was told itself."""
    evil = version(3, VICTIM)
    origins = {name: Origin(made_from=HISTORY[-1], told=frozenset(HISTORY[2:])) for name in NAMES if name != VICTIM}
    told = frozenset({*HISTORY[4:], HISTORY[2], evil})
    origins[VICTIM] = Origin(made_from=evil, told=told)
    with pytest.raises(ProtectionError, match="only 1 of the sites know"):
        require_one_history(origins, mine=told, colluders=1)
    with pytest.raises(ProtectionError, match="another version 3 than is known here"):
        require_one_history(origins, mine=HISTORY, colluders=1)
    # A colluder that claims to know it, too, does not help: with it there are two, and four are needed.
    origins["n4"] = Origin(made_from=HISTORY[-1], told=frozenset({*HISTORY[2:], evil}))
    with pytest.raises(ProtectionError, match="only 2 of the sites know"):
        require_one_history(origins, mine=told, colluders=1)


@both
@protections
def test_work_that_is_too_old_enters_no_flush(
    monkeypatch: pytest.MonkeyPatch, protection: Protection, checked: bool
) -> None:
    """What is old counts less, and after a while nothing: whoever replays it is refused by everybody."""
    about, made_from = flush(protection, staleness=2), {VICTIM: HISTORY[2]}
    if not checked:
        monkeypatch.setattr(manifest, "_origin", lambda *_: None)
        assert VICTIM in OpenedSites(about, made_from, {}).opened().cohort
        return
    with pytest.raises(ProtectionError, match="too old"):
        OpenedSites(about, made_from, {}).opened()


def test_the_coordinator_leaves_out_whom_the_others_would_refuse() -> None:
    """An honest one: the sites of a flush must not be held up by one whose version they do not know."""
    lost = version(3, "another life")
    told = {"n2": (*HISTORY[:3], lost, *HISTORY[4:])}
    result = OpenedSites(flush(Sealed()), {"n2": lost}, told).opened()
    assert result.cohort == ("n0", "n1", "n3", "n4")


# --- a site's own memory ----------------------------------------------------------------------------------------------


def work(folder: Path) -> CarriedWork:
    sites = {f"site-{index}": f"{index:064x}" for index in range(5)}
    settings = Study.parse(
        {
            "study": {"rounds": 9, "roster": sites},
            "protection": {"kind": "sealed", "recovery": True, "clip": 1.0},
            "rounds": {"mode": "buffered", "unit": "site", "merge": "delta", "staleness": 2},
        }
    )
    return CarriedWork(ResolvedStudy.of(settings), StudyStore(folder))


def announced(number: int, digest: bytes, *, version: int | None = None) -> pb.PhaseAnnouncement:
    model = pb.ModelRef(version=number - 1 if version is None else version, digest=digest)
    return pb.PhaseAnnouncement(round=number, attempt=1, model=model)


def test_a_version_has_one_digest_for_ever(tmp_path: Path) -> None:
    work(tmp_path).meet(announced(1, b"\1" * 32))
    work(tmp_path).meet(announced(2, b"\2" * 32))
    work(tmp_path).meet(announced(2, b"\2" * 32))
    with pytest.raises(RefusedError, match="version 1"):
        work(tmp_path).meet(announced(2, b"\3" * 32))  # after a restart
    assert [one.number for one in work(tmp_path).told(1)] == [0, 1]


def test_a_flush_begins_from_the_newest_version(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="begins elsewhere"):
        work(tmp_path).meet(announced(4, b"\1" * 32, version=2))


@both
def test_work_enters_one_flush_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    """In two sums it would count twice, and the two could be compared. The site's ledger would show it, too."""
    if not checked:
        monkeypatch.setattr(CarriedWork, "leaves", lambda *_: None)

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name)
        return await fed.coordinate()

    record, fed = play(tmp_path, scenario, flushes=2)
    if checked:
        require_sent_once(fed, record)
        return
    twice = [site for site in fed.names if [flush - age for flush, age in entries_of(record, site)] == [1, 1]]
    assert twice
    with pytest.raises(LedgerError, match="sends what was sent in another round before"):
        own_plans(fed, twice[0])


# --- who agreed -------------------------------------------------------------------------------------------------------


class _Remembers:
    """A site that was part of one sum before, with somebody who is not here now."""

    def known(self) -> Known:
        return Known(rows=((*NAMES, "n5"),))

    def decide(self, judge: object) -> None:
        judge(self.known())  # type: ignore[operator]


def _agreement(name: str, study_id: str = "5a" * 32) -> Agreement:
    about = replace(flush(Sealed()), study_id=study_id)
    its = replace(host(name), exceptions=frozenset({CHANGING_COHORTS}))
    said = signed.make_manifest(about, its, protocol="sealed", blocks=(), extension=b"")
    return agreement_in(parse(Manifest, said.SerializeToString()))


def test_an_agreement_is_one_sites_for_one_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator passes agreements on, and can make none up."""
    roster = {name: member(name).certificate.fingerprint for name in NAMES}
    about = {"study_id": "5a" * 32, "roster": roster}
    assert who_agreed([_agreement("n1")], **about) == {"n1"}  # type: ignore[arg-type]
    borrowed = Agreement(certificate=member("n2").certificate.der, signature=_agreement("n1").signature)
    for forged in (_agreement("n1", "5b" * 32), borrowed, _agreement("n7")):
        with pytest.raises(SecureFLError):
            who_agreed([forged], **about)  # type: ignore[arg-type]
    monkeypatch.setattr(signed_agreements, "verify_agreement", lambda *_: None)
    assert who_agreed([borrowed], **about) == {"n2"}  # type: ignore[arg-type]


@pytest.mark.parametrize("agreed", [True, False])
def test_who_is_not_there_is_shown_only_if_it_agreed(agreed: bool) -> None:
    """An earlier sum had one site more. Whoever was in it opens no sum without that site, unless that site agreed."""
    about = flush(Sealed())

    def its(name: str) -> Host:
        who = frozenset({"n5"}) if agreed else frozenset[str]()
        exceptions = frozenset({CHANGING_COHORTS})
        return replace(host(name), exceptions=exceptions, told=HISTORY[2:], past=_Remembers(), agreed=who)

    table = OpenedSites(about, {}, {})
    for place, name in enumerate(NAMES):
        mine = replace(given(place), made_from=HISTORY[-1])
        table.halves[name] = node_half(Sealed(), about, mine, its(name))  # type: ignore[arg-type]
    if agreed:
        assert table.opened().cohort == NAMES
        return
    with pytest.raises(ReleaseRefusedError, match="n5 would be shown"):
        table.opened()


def test_a_site_with_many_certificates_does_not_make_the_list_too_long_to_pass_on(tmp_path: Path) -> None:
    """A site binds its key to as many TLS keys as it likes, and nobody but other sites asks who signed that."""
    known, theirs = KnownAgreements(tmp_path), member("n1")
    its = replace(host("n1"), exceptions=frozenset({CHANGING_COHORTS}))
    said = signed.make_manifest(flush(Sealed()), its, protocol="sealed", blocks=(), extension=b"")
    for number in range(3):
        said.certificate = self_made(theirs, serial=number + 1)
        roster = {"n1": theirs.certificate.fingerprint}
        assert who_agreed([agreement_in(said)], study_id="5a" * 32, roster=roster) == {"n1"}
        known.add(said.SerializeToString())
    first = known.passed_on
    assert len(parse(Agreements, first).agreements) == 1
    again = KnownAgreements(tmp_path)
    again.load()
    assert again.passed_on == first


def self_made(site: Member, *, serial: int) -> bytes:
    """A certificate that a site signed itself, for the key by which others know it."""
    subject, tls = site.certificate.subject, ec.generate_private_key(ec.SECP256R1())
    name, now = subject.common_name(), site.certificate.not_before
    made = (
        x509.CertificateBuilder(name, name, tls.public_key(), serial, now, site.certificate.not_after)
        .add_extension(x509.ExtendedKeyUsage([subject.usage]), critical=False)
        .add_extension(subject.alternative_names(), critical=False)
        .add_extension(bind(site.key, tls_public=tls_public_bytes(tls.public_key()), subject=subject), critical=False)
        .sign(tls, hashes.SHA256())
    )
    return made.public_bytes(Encoding.DER)
