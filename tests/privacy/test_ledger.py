"""A site's ledger: whatever is changed in it afterwards, the first entry that is not genuine is named."""

from __future__ import annotations

import hashlib
import json
import resource
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secure_fl.errors import (
    CertificateError,
    ForeignLedgerError,
    LedgerError,
    MissingLedgerError,
    SchemaError,
    StorageError,
)
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.identity.ledger_head import LedgerHead
from secure_fl.privacy import ledger as module
from secure_fl.privacy.ledger import LEDGER_VERSION, Entry, Ledger, end_of, read_ledger, read_site_ledger
from tests.protect.laws import law

Open: TypeAlias = Callable[..., Ledger]
ENTRIES = 5  # "opened" and four more


def noon(site: Credential) -> datetime:
    """A time at which the site's certificate is valid."""
    return site.certificate.not_before + timedelta(hours=1)


@pytest.fixture(scope="module")
def open_ledger(consortium: Authority) -> Open:
    """Open a site's ledger, under one clock."""

    def opened(path: Path, site: Credential, *, expected: bool = False, ahead: timedelta = timedelta(0)) -> Ledger:
        return Ledger(
            path,
            certificate=site.certificate,
            key=site.signing_key,
            authority=consortium.ca_pem,
            expected=expected,
            now=lambda: noon(site) + ahead,
        )

    return opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.jsonl"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, north: Credential, open_ledger: Open) -> bytes:
    """A ledger of `ENTRIES` entries, as bytes."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = open_ledger(path, north)
    for number in range(1, ENTRIES):
        ledger.append("sent", {"round": number, "epsilon": None, "site": "Zürich"})
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "ledger.jsonl"


def lines_of(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def read(path: Path) -> tuple[list[Entry], str | None]:
    """The genuine entries from the start, and what is said about the first that is not."""
    entries: list[Entry] = []
    source = read_ledger(path)
    try:
        while (entry := next(source, None)) is not None:
            entries.append(entry)
    except LedgerError as error:
        return entries, error.message
    return entries, None


def test_a_half_written_last_line_and_missing_lines_are_called_so(scratch: Path, written: bytes) -> None:
    scratch.write_bytes(written[:-20])
    assert read(scratch)[1] == (
        f"{scratch}: entry {ENTRIES - 1} is not genuine: the last line is half written (a copy made while the node "
        "wrote, or the file was cut)"
    )
    lines = lines_of(written)
    scratch.write_bytes(b"".join([*lines[:1], *lines[3:]]))
    assert read(scratch)[1] == (
        f"{scratch}: entry 1 is not genuine: the line there is numbered 3, so that 2 before it are missing"
    )
    scratch.write_bytes(b"".join([*lines[:1], b'{"sequence": ' + b"9" * 4000 + b"}\n"]))
    assert read(scratch)[1] == f"{scratch}: entry 1 is not genuine"


def expect_bad(path: Path, content: bytes, entry: int) -> None:
    path.write_bytes(content)
    genuine, message = read(path)
    assert message is not None
    assert message.partition(" genuine")[0] == f"{path}: entry {entry} is not"
    assert [known.sequence for known in genuine] == list(range(entry))


# --- appending and reading --------------------------------------------------------------------------------------


def test_entries_come_back_in_order(path: Path, north: Credential, open_ledger: Open) -> None:
    ledger = open_ledger(path, north)
    ledger.append("planned", {"round": 1})
    ledger.append("sent", {"round": 1, "release": {"bytes": 7}})
    opened, planned, sent = read_ledger(path)
    assert opened.kind == "opened"
    assert opened.facts == {"name": "north", "certificate": north.certificate.pem.decode()}
    line = path.read_bytes().splitlines()[1]
    assert planned == Entry(
        sequence=1,
        time=noon(north).isoformat(timespec="milliseconds"),
        kind="planned",
        facts={"round": 1},
        version=2,
        digest=hashlib.sha256(line).hexdigest(),
    )
    assert planned.moment == noon(north)
    assert (sent.kind, sent.facts["release"]) == ("sent", {"bytes": 7})


def test_a_ledger_goes_on_where_it_was_left(path: Path, north: Credential, open_ledger: Open) -> None:
    for number in range(3):
        open_ledger(path, north).append("sent", {"round": number})
    assert [entry.kind for entry in read_ledger(path)] == ["opened", "sent", "sent", "sent"]


@pytest.mark.parametrize("content", [None, b""])
def test_an_empty_or_missing_ledger_is_not_read(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    with pytest.raises(LedgerError):
        list(read_ledger(path))


# --- crashes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.parametrize("noted", [True, False], ids=["shipped", "without the note"])
def test_a_ledger_that_was_cut_or_is_an_old_copy_is_not_continued(
    path: Path, north: Credential, consortium: Authority, open_ledger: Open, cut: int, noted: bool
) -> None:
    """It would give the site back what it has spent."""
    ledger = open_ledger(path, north)
    for number in range(5):
        ledger.append("planned", {"round": number})
    lines = lines_of(path.read_bytes())
    path.write_bytes(b"".join(lines[:-cut]))
    if not noted:
        end_of(path).unlink()
        assert len(read_site_ledger(path, authority=consortium.ca_pem)) == len(lines) - cut
        open_ledger(path, north)
        return
    for reading in (lambda: read_site_ledger(path, authority=consortium.ca_pem), lambda: open_ledger(path, north)):
        with pytest.raises(LedgerError, match=f"its last {cut} of {len(lines)} entries are missing"):
            reading()
    path.unlink()
    with pytest.raises(MissingLedgerError):
        open_ledger(path, north)
    path.write_bytes(b"".join(lines))
    assert open_ledger(path, north).head.length == len(lines)


def test_an_entry_of_which_the_note_is_missing_counts(path: Path, north: Credential, open_ledger: Open) -> None:
    """A crash between the two: the ledger goes one further than the note says."""
    ledger = open_ledger(path, north)
    ledger.append("planned", {})
    before = end_of(path).read_bytes()
    ledger.append("sent", {})
    end_of(path).write_bytes(before)
    assert open_ledger(path, north).head.length == 3
    end_of(path).write_bytes(b"")
    assert open_ledger(path, north).head.length == 3  # It was made, and never reached the disk.
    end_of(path).write_bytes(b"2")
    with pytest.raises(LedgerError, match="cannot be read"):
        open_ledger(path, north)


@law
@given(st.data())
def test_a_torn_last_line_is_dropped_on_reopening(
    written: bytes, scratch: Path, north: Credential, open_ledger: Open, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(written)))
    scratch.write_bytes(written[:cut])
    end_of(scratch).unlink(missing_ok=True)  # of the example before
    open_ledger(scratch, north).append("sent", {"round": "after the crash"})
    whole = max(1, written[:cut].count(b"\n"))  # entry 0 is written again if it was torn
    entries = list(read_ledger(scratch))
    assert len(entries) == whole + 1
    assert entries[-1].facts == {"round": "after the crash"}
    if cut and written[:cut].count(b"\n"):
        assert scratch.read_bytes().startswith(written[: written[:cut].rindex(b"\n") + 1])


@pytest.mark.parametrize("room", [0, 1, 100])
def test_an_entry_that_did_not_fit_on_the_disk_is_not_in_the_way_of_the_next(
    path: Path, north: Credential, room: int, open_ledger: Open
) -> None:
    ledger = open_ledger(path, north)
    ledger.append("sent", {"round": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        with pytest.raises(StorageError):
            ledger.append("sent", {"round": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ledger.append("sent", {"round": 3})
    assert [entry.facts.get("round") for entry in read_ledger(path)] == [None, 1, 3]


@pytest.mark.parametrize(
    "last", [b"{}\n", b"[]\n", b"no json\n", b'{"version":1}\n', b'{"version":"x","sequence":1}\n', b"\n"]
)
def test_a_ledger_whose_last_line_is_no_entry_is_not_continued(
    path: Path, written: bytes, north: Credential, last: bytes, open_ledger: Open
) -> None:
    path.parent.mkdir()
    path.write_bytes(written + last)
    with pytest.raises(LedgerError):
        open_ledger(path, north)
    assert path.read_bytes() == written + last


# --- tampering --------------------------------------------------------------------------------------------------


@law
@given(st.data())
def test_any_changed_byte_is_noticed_in_its_entry(written: bytes, scratch: Path, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(written) - 1))
    changed = bytearray(written)
    changed[position] ^= data.draw(st.integers(1, 255))
    expect_bad(scratch, bytes(changed), written[:position].count(b"\n"))


@pytest.mark.parametrize("position", range(ENTRIES))
@pytest.mark.parametrize(
    "rewrite",
    [
        lambda line: line.replace(b", ", b","),
        lambda line: line[:-1] + b" \n",
        lambda line: line[:-1] + b"\r\n",
        lambda line: line.replace(b'"signature": "', b'"signature": " '),
        lambda line: line.replace(b'{"facts"', b'{"facts": {}, "facts"'),
        lambda line: json.dumps(dict(reversed(json.loads(line).items()))).encode() + b"\n",
    ],
    ids=["spacing", "trailing space", "carriage return", "signature", "a repeated key", "order of keys"],
)
def test_even_a_rewriting_that_means_the_same_is_noticed(
    written: bytes, scratch: Path, position: int, rewrite: Callable[[bytes], bytes]
) -> None:
    lines = lines_of(written)
    lines[position] = rewrite(lines[position])
    assert lines[position] != lines_of(written)[position]
    expect_bad(scratch, b"".join(lines), position)


@pytest.mark.parametrize("position", range(ENTRIES - 1))
def test_a_removed_entry_is_noticed_where_it_was(written: bytes, scratch: Path, position: int) -> None:
    lines = lines_of(written)
    del lines[position]
    expect_bad(scratch, b"".join(lines), position)


@law
@given(st.permutations(range(ENTRIES)))
def test_reordered_entries_are_noticed_at_the_first_that_moved(written: bytes, scratch: Path, order: list[int]) -> None:
    moved = [position for position, entry in enumerate(order) if position != entry]
    assume(moved)
    lines = lines_of(written)
    expect_bad(scratch, b"".join(lines[entry] for entry in order), moved[0])


@law
@given(st.integers(0, ENTRIES - 1), st.integers(0, ENTRIES))
def test_a_repeated_entry_is_noticed(written: bytes, scratch: Path, entry: int, place: int) -> None:
    lines = lines_of(written)
    inserted = [*lines[:place], lines[entry], *lines[place:]]
    first = next(i for i, line in enumerate(inserted) if i >= ENTRIES or line != lines[i])
    expect_bad(scratch, b"".join(inserted), first)


def test_a_tail_that_was_cut_off_is_what_a_chain_alone_cannot_show(written: bytes, scratch: Path) -> None:
    scratch.write_bytes(b"".join(lines_of(written)[:-1]))
    assert len(list(read_ledger(scratch))) == ENTRIES - 1


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"[]", b"1", b"null", b"\xff", b'{"signature": 3}', b'{"signature": "zz"}', b""]
)
def test_anything_else_in_the_place_of_an_entry_is_named(written: bytes, scratch: Path, line: bytes) -> None:
    expect_bad(scratch, written + line + b"\n", ENTRIES)
    expect_bad(scratch, line + b"\n" + written, 0)


# --- keys and versions ------------------------------------------------------------------------------------------


def further_entry(
    written: bytes,
    site: Credential,
    *,
    sequence: int | None = None,
    kind: str = "cancelled",
    facts: dict[str, str] | None = None,
    version: int = LEDGER_VERSION,
    time: datetime | None = None,
) -> bytes:
    """One more entry, well formed and in its place, signed by `site`."""
    body = {
        "version": version,
        "sequence": len(lines_of(written)) if sequence is None else sequence,
        "previous": hashlib.sha256(lines_of(written)[-1][:-1]).hexdigest(),
        "time": (time or noon(site)).isoformat(timespec="milliseconds"),
        "kind": kind,
        "facts": facts or {},
    }
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    signature = site.signing_key.sign("ledger", canonical).hex()
    return json.dumps({**body, "signature": signature}, sort_keys=True).encode() + b"\n"


def test_an_entry_signed_by_another_key_is_not_genuine(
    written: bytes, scratch: Path, north: Credential, south: Credential
) -> None:
    scratch.write_bytes(written + further_entry(written, north))
    assert [entry.kind for entry in read_ledger(scratch)][-1] == "cancelled"
    expect_bad(scratch, written + further_entry(written, south), ENTRIES)
    expect_bad(scratch, written + further_entry(written, north, sequence=ENTRIES + 1), ENTRIES)


@pytest.mark.parametrize("place", range(1, ENTRIES))
def test_two_genuine_ledgers_of_one_key_cannot_be_spliced(
    written: bytes, scratch: Path, north: Credential, place: int, open_ledger: Open
) -> None:
    for file in (scratch, end_of(scratch)):
        file.unlink(missing_ok=True)
    other = open_ledger(scratch, north)
    for _ in range(1, ENTRIES):
        other.append("cancelled", {})
    ours, theirs = lines_of(written), lines_of(scratch.read_bytes())
    end_of(scratch).unlink()
    # Entry 0 is the same in both, so the first of theirs follows it rightly.
    expect_bad(scratch, b"".join([*ours[: place + 1], *theirs[place + 1 :], theirs[-1]]), place + 1)


def test_a_site_does_not_continue_the_ledger_of_another_site(
    path: Path, written: bytes, south: Credential, north: Credential, open_ledger: Open
) -> None:
    path.parent.mkdir()
    path.write_bytes(written)
    with pytest.raises(ForeignLedgerError, match="belongs to 'north', not to 'south'"):
        open_ledger(path, south)
    assert path.read_bytes() == written
    open_ledger(path, north).append("sent", {})


def test_a_site_that_renews_its_keys_continues_its_ledger(
    path: Path,
    scratch: Path,
    written: bytes,
    consortium: Authority,
    north: Credential,
    south: Credential,
    open_ledger: Open,
) -> None:
    path.parent.mkdir()
    path.write_bytes(written)
    renewed = consortium.issue("node", north.certificate.name, renew=True)
    open_ledger(path, renewed).append("sent", {"round": 9})
    open_ledger(path, renewed).append("sent", {"round": 10})
    kinds = [entry.kind for entry in read_ledger(path)]
    assert kinds[ENTRIES:] == ["renewed", "sent", "sent"]
    # The old key is out of force, and another site's certificate is no renewal.
    whole = path.read_bytes()
    expect_bad(scratch, whole + further_entry(whole, north), ENTRIES + 3)
    taken = {"name": "north", "certificate": south.certificate.pem.decode()}
    expect_bad(scratch, whole + further_entry(whole, south, kind="renewed", facts=taken), ENTRIES + 3)


def test_a_ledger_of_a_newer_version_is_left_untouched(
    path: Path, north: Credential, monkeypatch: pytest.MonkeyPatch, open_ledger: Open
) -> None:
    ledger = open_ledger(path, north)
    monkeypatch.setattr(module, "LEDGER_VERSION", LEDGER_VERSION + 1)
    ledger.append("sent", {})
    monkeypatch.undo()
    content = path.read_bytes() + b'{"torn'
    path.write_bytes(content)
    with pytest.raises(SchemaError):
        open_ledger(path, north)
    assert path.read_bytes() == content
    with pytest.raises(SchemaError):
        list(read_ledger(path))


def test_several_threads_write_one_chain(path: Path, north: Credential, open_ledger: Open) -> None:
    # A node takes part in several studies at once, and its attempts write from threads.
    ledger = open_ledger(path, north)

    def write(writer: int) -> None:
        for number in range(25):
            ledger.append("planned", {"writer": writer, "number": number})

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = list(read_ledger(path))
    assert len(entries) == 1 + 4 * 25
    for writer in range(4):
        mine = [entry.facts["number"] for entry in entries[1:] if entry.facts["writer"] == writer]
        assert mine == list(range(25))


# --- the first version ------------------------------------------------------------------------------------------


def first_version(path: Path, site: Credential) -> bytes:
    """A ledger as version 1 wrote it, with its own words."""
    content = b""
    mine = {"name": site.certificate.name, "certificate": site.certificate.pem.decode()}
    for kind, facts in (("opened", mine), ("reserved", {}), ("spent", {}), ("reserved", {}), ("released", {})):
        if content:
            content += further_entry(content, site, kind=kind, facts=facts, version=1)
        else:
            body = {
                "version": 1,
                "sequence": 0,
                "previous": "0" * 64,
                "time": noon(site).isoformat(timespec="milliseconds"),
                "kind": kind,
                "facts": facts,
            }
            canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
            signature = site.signing_key.sign("ledger", canonical).hex()
            content = json.dumps({**body, "signature": signature}, sort_keys=True).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content


def test_a_ledger_of_the_first_version_is_read_in_todays_words_and_goes_on_unchanged(
    path: Path, scratch: Path, consortium: Authority, north: Credential, open_ledger: Open
) -> None:
    content = first_version(path, north)
    words = ["opened", "planned", "sent", "planned", "cancelled"]
    assert [entry.kind for entry in read_ledger(path)] == words
    open_ledger(path, north).append("planned", {"round": 9})
    assert path.read_bytes().startswith(content)
    entries = read_site_ledger(path, authority=consortium.ca_pem, site="north")
    assert [entry.kind for entry in entries] == [*words, "planned"]
    assert [entry.version for entry in entries] == [1] * 5 + [2]
    # The old words mean what they meant in old entries alone, and no old entry follows a new one.
    whole = path.read_bytes()
    expect_bad(scratch, whole + further_entry(whole, north, version=1), 6)


def test_the_first_version_wrote_down_any_time_and_this_one_waits_for_the_clock(
    path: Path, scratch: Path, consortium: Authority, north: Credential, open_ledger: Open
) -> None:
    content = first_version(path, north)
    earlier = noon(north) - timedelta(minutes=20)
    path.write_bytes(content + further_entry(content, north, version=1, time=earlier))
    ledger = open_ledger(path, north, ahead=timedelta(minutes=-30))
    ledger.append("planned", {})
    entries = read_site_ledger(path, authority=consortium.ca_pem, site="north")
    assert [entry.moment for entry in entries[-2:]] == [earlier, earlier]
    whole = path.read_bytes()
    scratch.write_bytes(whole + further_entry(whole, north, time=earlier - timedelta(milliseconds=1)))
    with pytest.raises(LedgerError, match="entry 7 is earlier than the one before it"):
        read_site_ledger(scratch, authority=consortium.ca_pem, site="north")
    with pytest.raises(LedgerError, match="entry 7"):
        open_ledger(scratch, north)


# --- whose it is ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another consortium with the same name, which has a site of the same name."""
    return Authority.create(tmp_path_factory.mktemp("elsewhere"), consortium="Heart Study")


def test_a_ledger_is_read_under_its_own_consortium_and_name_alone(
    scratch: Path, written: bytes, consortium: Authority, elsewhere: Authority
) -> None:
    scratch.write_bytes(written)
    for site in ("north", None):
        assert len(read_site_ledger(scratch, authority=consortium.ca_pem, site=site)) == ENTRIES
        with pytest.raises(ForeignLedgerError, match="entry 0: node 'north': not issued by this consortium"):
            read_site_ledger(scratch, authority=elsewhere.ca_pem, site=site)
    with pytest.raises(ForeignLedgerError, match="belongs to 'north', not to 'south'"):
        read_site_ledger(scratch, authority=consortium.ca_pem, site="south")


def test_a_site_does_not_continue_a_ledger_of_another_consortium(
    scratch: Path, written: bytes, north: Credential, elsewhere: Authority
) -> None:
    scratch.write_bytes(written)
    namesake = elsewhere.issue("node", "north", renew=True)
    with pytest.raises(ForeignLedgerError, match="not issued by this consortium"):
        Ledger(
            scratch,
            certificate=namesake.certificate,
            key=namesake.signing_key,
            authority=elsewhere.ca_pem,
        )
    assert scratch.read_bytes() == written


def test_a_renewal_by_another_consortium_is_foreign(
    scratch: Path, written: bytes, consortium: Authority, elsewhere: Authority
) -> None:
    namesake = elsewhere.issue("node", "north", renew=True)
    taken = {"name": "north", "certificate": namesake.certificate.pem.decode()}
    entry = further_entry(written, namesake, kind="renewed", facts=taken)
    scratch.write_bytes(written + entry)
    assert len(list(read_ledger(scratch))) == ENTRIES + 1  # The chain alone is in order.
    with pytest.raises(ForeignLedgerError, match=f"entry {ENTRIES}: node 'north': not issued"):
        read_site_ledger(scratch, authority=consortium.ca_pem, site="north")


def test_a_certificate_counts_if_it_was_valid_when_it_was_entered(
    path: Path, tmp_path: Path, consortium: Authority, north: Credential
) -> None:
    long_ago = north.certificate.not_before - timedelta(days=400)
    old = Authority.create(tmp_path / "old", consortium="Old", now=lambda: long_ago)
    site = old.issue("node", "north", days=10)
    clock = [long_ago]
    Ledger(path, certificate=site.certificate, key=site.signing_key, authority=old.ca_pem, now=lambda: clock[0]).append(
        "planned", {}
    )
    assert len(read_site_ledger(path, authority=old.ca_pem, site="north")) == 2  # It has expired since.
    for days in (-1, 11):
        for file in (path, end_of(path)):
            file.unlink(missing_ok=True)
        clock[0] = long_ago + timedelta(days=days)
        with pytest.raises(CertificateError):
            Ledger(path, certificate=site.certificate, key=site.signing_key, authority=old.ca_pem, now=lambda: clock[0])
        assert not path.exists()


def test_an_operator_has_no_ledger(path: Path, consortium: Authority) -> None:
    lead = consortium.issue("operator", "lead", renew=True)
    with pytest.raises(CertificateError, match="a node is expected here"):
        Ledger(path, certificate=lead.certificate, key=lead.signing_key, authority=consortium.ca_pem)
    assert not path.exists()


def test_a_missing_ledger_is_named_and_never_begun_anew_where_one_must_be(
    path: Path, consortium: Authority, north: Credential, open_ledger: Open
) -> None:
    with pytest.raises(MissingLedgerError, match="there is no ledger"):
        read_site_ledger(path, authority=consortium.ca_pem, site="north")
    with pytest.raises(MissingLedgerError, match="there is no ledger"):
        open_ledger(path, north, expected=True)
    assert not path.exists()
    path.parent.mkdir()
    for content in (b"", b'{"torn'):
        path.write_bytes(content)
        with pytest.raises(MissingLedgerError, match="it is empty"):
            open_ledger(path, north, expected=True)
        assert path.read_bytes() == content
    open_ledger(path, north)
    open_ledger(path, north, expected=True)
    assert [entry.kind for entry in read_ledger(path)] == ["opened"]


@pytest.mark.parametrize("kind", ["opened", "spent", "anything"])
def test_an_entry_of_a_kind_that_has_no_place_there_is_named(
    scratch: Path, written: bytes, consortium: Authority, north: Credential, kind: str
) -> None:
    facts = {"name": "north", "certificate": north.certificate.pem.decode()}
    scratch.write_bytes(written + further_entry(written, north, kind=kind, facts=facts))
    with pytest.raises(LedgerError, match=f"entry {ENTRIES} is of a kind"):
        read_site_ledger(scratch, authority=consortium.ca_pem, site="north")


def test_no_unknown_kind_is_written(path: Path, north: Credential, open_ledger: Open) -> None:
    with pytest.raises(ValueError, match="no kind"):
        open_ledger(path, north).append("spent", {})


# --- heads ------------------------------------------------------------------------------------------------------


def test_the_head_is_the_length_and_the_hash_of_the_last_line(path: Path, north: Credential, open_ledger: Open) -> None:
    ledger = open_ledger(path, north)
    for length in (1, 2, 3):
        last = path.read_bytes().splitlines()[-1]
        assert ledger.head == LedgerHead(site="north", length=length, head=hashlib.sha256(last).hexdigest())
        assert open_ledger(path, north).head == ledger.head
        ledger.append("planned", {})


def test_a_line_that_was_written_but_never_acknowledged_is_dropped(
    path: Path, north: Credential, open_ledger: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise "sent" would stand there, followed by "cancelled".
    ledger = open_ledger(path, north)
    ledger.append("planned", {"round": 1})
    head = ledger.head

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr("secure_fl.privacy.ledger.os.fsync", fail)
        with pytest.raises(StorageError):
            ledger.append("sent", {"round": 1})
    assert ledger.head == head
    ledger.append("cancelled", {"round": 1})
    assert [entry.kind for entry in read_ledger(path)] == ["opened", "planned", "cancelled"]


@pytest.mark.parametrize(("length", "head"), [(0, "ab" * 32), (1, "AB" * 32), (1, "ab"), (1, "zz" * 32)])
def test_what_is_no_head_is_not_made(length: int, head: str) -> None:
    with pytest.raises(ValueError, match="head"):
        LedgerHead(site="north", length=length, head=head)
