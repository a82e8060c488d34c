"""A site's ledger: whatever is changed in it afterwards, the first entry that is not genuine is named."""

from __future__ import annotations

import hashlib
import json
import resource
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secure_fl.errors import LedgerError, SchemaError, StorageError
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.privacy import ledger as module
from secure_fl.privacy.ledger import Entry, Ledger, read_ledger
from tests.protect.laws import law

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ENTRIES = 5  # "opened" and four more


def open_ledger(path: Path, site: Credential) -> Ledger:
    return Ledger(path, certificate=site.certificate, key=site.signing_key, now=lambda: NOON)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.jsonl"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, north: Credential) -> bytes:
    """A ledger of `ENTRIES` entries, as bytes."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = open_ledger(path, north)
    for number in range(1, ENTRIES):
        ledger.append("spent", {"round": number, "epsilon": None, "site": "Zürich"})
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


def expect_bad(path: Path, content: bytes, entry: int) -> None:
    path.write_bytes(content)
    genuine, message = read(path)
    assert message == f"{path}: entry {entry} is not genuine"
    assert [known.sequence for known in genuine] == list(range(entry))


# --- appending and reading --------------------------------------------------------------------------------------


def test_entries_come_back_in_order(path: Path, north: Credential) -> None:
    ledger = open_ledger(path, north)
    ledger.append("reserved", {"round": 1})
    ledger.append("spent", {"round": 1, "release": {"bytes": 7}})
    opened, reserved, spent = read_ledger(path)
    assert opened.kind == "opened"
    assert opened.facts == {"name": "north", "certificate": north.certificate.pem.decode()}
    assert reserved == Entry(
        sequence=1, time=NOON.isoformat(timespec="milliseconds"), kind="reserved", facts={"round": 1}
    )
    assert (spent.kind, spent.facts["release"]) == ("spent", {"bytes": 7})


def test_a_ledger_goes_on_where_it_was_left(path: Path, north: Credential) -> None:
    for number in range(3):
        open_ledger(path, north).append("spent", {"round": number})
    assert [entry.kind for entry in read_ledger(path)] == ["opened", "spent", "spent", "spent"]


@pytest.mark.parametrize("content", [None, b""])
def test_an_empty_or_missing_ledger_is_not_read(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    with pytest.raises(LedgerError):
        list(read_ledger(path))


# --- crashes ----------------------------------------------------------------------------------------------------


@law
@given(st.data())
def test_a_torn_last_line_is_dropped_on_reopening(
    written: bytes, scratch: Path, north: Credential, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(written)))
    scratch.write_bytes(written[:cut])
    open_ledger(scratch, north).append("spent", {"round": "after the crash"})
    whole = max(1, written[:cut].count(b"\n"))  # entry 0 is written again if it was torn
    entries = list(read_ledger(scratch))
    assert len(entries) == whole + 1
    assert entries[-1].facts == {"round": "after the crash"}
    if cut and written[:cut].count(b"\n"):
        assert scratch.read_bytes().startswith(written[: written[:cut].rindex(b"\n") + 1])


@pytest.mark.parametrize("room", [0, 1, 100])
def test_an_entry_that_did_not_fit_on_the_disk_is_not_in_the_way_of_the_next(
    path: Path, north: Credential, room: int
) -> None:
    ledger = open_ledger(path, north)
    ledger.append("spent", {"round": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        with pytest.raises(StorageError):
            ledger.append("spent", {"round": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    ledger.append("spent", {"round": 3})
    assert [entry.facts.get("round") for entry in read_ledger(path)] == [None, 1, 3]


@pytest.mark.parametrize(
    "last", [b"{}\n", b"[]\n", b"no json\n", b'{"version":1}\n', b'{"version":"x","sequence":1}\n', b"\n"]
)
def test_a_ledger_whose_last_line_is_no_entry_is_not_continued(
    path: Path, written: bytes, north: Credential, last: bytes
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
    kind: str = "released",
    facts: dict[str, str] | None = None,
) -> bytes:
    """One more entry, well formed and in its place, signed by `site`."""
    body = {
        "version": 1,
        "sequence": len(lines_of(written)) if sequence is None else sequence,
        "previous": hashlib.sha256(lines_of(written)[-1][:-1]).hexdigest(),
        "time": NOON.isoformat(),
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
    assert [entry.kind for entry in read_ledger(scratch)][-1] == "released"
    expect_bad(scratch, written + further_entry(written, south), ENTRIES)
    expect_bad(scratch, written + further_entry(written, north, sequence=ENTRIES + 1), ENTRIES)


@pytest.mark.parametrize("place", range(1, ENTRIES))
def test_two_genuine_ledgers_of_one_key_cannot_be_spliced(
    written: bytes, scratch: Path, north: Credential, place: int
) -> None:
    scratch.unlink(missing_ok=True)
    other = open_ledger(scratch, north)
    for _ in range(1, ENTRIES):
        other.append("released", {})
    ours, theirs = lines_of(written), lines_of(scratch.read_bytes())
    # Entry 0 is the same in both, so the first of theirs follows it rightly.
    expect_bad(scratch, b"".join([*ours[: place + 1], *theirs[place + 1 :], theirs[-1]]), place + 1)


def test_a_site_does_not_continue_the_ledger_of_another_site(
    path: Path, written: bytes, south: Credential, north: Credential
) -> None:
    path.parent.mkdir()
    path.write_bytes(written)
    with pytest.raises(LedgerError, match="belongs to"):
        open_ledger(path, south)
    assert path.read_bytes() == written
    open_ledger(path, north).append("spent", {})


def test_a_site_that_renews_its_keys_continues_its_ledger(
    path: Path, scratch: Path, written: bytes, consortium: Authority, north: Credential, south: Credential
) -> None:
    path.parent.mkdir()
    path.write_bytes(written)
    renewed = consortium.issue("node", north.certificate.name, renew=True)
    open_ledger(path, renewed).append("spent", {"round": 9})
    open_ledger(path, renewed).append("spent", {"round": 10})
    kinds = [entry.kind for entry in read_ledger(path)]
    assert kinds[ENTRIES:] == ["renewed", "spent", "spent"]
    # The old key is out of force, and another site's certificate is no renewal.
    whole = path.read_bytes()
    expect_bad(scratch, whole + further_entry(whole, north), ENTRIES + 3)
    taken = {"name": "north", "certificate": south.certificate.pem.decode()}
    expect_bad(scratch, whole + further_entry(whole, south, kind="renewed", facts=taken), ENTRIES + 3)


def test_a_ledger_of_a_newer_version_is_left_untouched(
    path: Path, north: Credential, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(path, north)
    monkeypatch.setattr(module, "LEDGER_VERSION", 2)
    ledger.append("spent", {})
    monkeypatch.undo()
    content = path.read_bytes() + b'{"torn'
    path.write_bytes(content)
    with pytest.raises(SchemaError):
        open_ledger(path, north)
    assert path.read_bytes() == content
    with pytest.raises(SchemaError):
        list(read_ledger(path))


def test_several_threads_write_one_chain(path: Path, north: Credential) -> None:
    # A node takes part in several studies at once, and its attempts write from threads.
    ledger = open_ledger(path, north)

    def write(writer: int) -> None:
        for number in range(25):
            ledger.append("reserved", {"writer": writer, "number": number})

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
