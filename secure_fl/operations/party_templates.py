"""The files that `secure-fl node new`, `node join` and the like write: every key with its default, and what it does.

Paths are relative to the file. What differs from party to party is filled in; all else is the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w

from secure_fl.errors import UsageError
from secure_fl.settings import section_name

_COLUMN = 38  # where comments begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A site's data under the id by which studies name it; `UsageError` for an id that cannot be one."""

    id: str
    path: str
    units: int | None = None  # about how many records or groups there are, for differential privacy

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.id):
            raise UsageError(f"{self.id!r} is not an id of a data set", advice="use letters, digits, - and _")


def coordinator_file(name: str, *, port: int = 8443) -> str:
    """`coordinator.toml`."""
    return f"""\
# The coordinator {name}. `secure-fl doctor` checks this file, `secure-fl coordinator serve` runs it.

[coordinator]
{_line("address", f"0.0.0.0:{port}", "where to listen")}
{_identity("coordinator", name)}
{_line("tasks", (), 'for `studies` of this file alone: "module:attribute" tasks it may import')}

[limits]
{_line("heartbeat", 10.0, "seconds; three without a sign of life end a session")}
{_line("grace", 20.0, "seconds a round waits for a site that vanished in its middle")}
{_line("connections", 512, "of everybody together")}
{_line("calls_per_peer", 16, "at the same time, per party")}
{_line("messages_per_second", 500.0, "per party; who sends faster is read more slowly")}
{_line("model_bytes", 2**30, "the largest shared model of a study")}

[monitoring]
{_line("address", "127.0.0.1:9464", '/metrics and /health; "" switches it off')}

{_STATE_AND_LOG}"""


def node_file(
    name: str, *, coordinator: str, fingerprint: str, datasets: Sequence[Dataset] = (), tasks: Sequence[str] = ()
) -> str:
    """`node.toml`."""
    sections = "\n".join(_dataset(one) for one in datasets) or _NO_DATASET
    return f"""\
# The site {name}: what it decides. This file is never sent anywhere.
# `secure-fl doctor` checks it, `secure-fl node serve` runs it.

[node]
{_line("name", name, "as in the certificate")}
{_dialing(coordinator, fingerprint)}
{_identity("node", name)}
{_line("proxy", "", "http://[user:password@]host:port; empty: HTTPS_PROXY and NO_PROXY")}
{_line("device", "cpu", 'or "cuda", "cuda:1": where to train')}
{_line("threads", 0, "torch threads in training; 0 lets torch decide")}

{sections}
[policy]                              # what this site agrees to; everything else is refused
protections = ["masked", "sealed"]    # "none" lets the coordinator read updates, "encrypted" it with one other site
{_line("strategies", (), "empty: all")}
{_line("datasets", (), "ids that studies may use; empty: all of this file")}
{_line("tasks", tuple(tasks), 'tasks that are no installed package: "wards.py:Wards", a file beside this one')}
{_line("min_cohort", 3, "fewest sites behind anything opened")}
{_line("colluders", 1, "how many sites siding with the coordinator a study has to withstand")}
{_line("model_bytes", 2**30, "the largest shared model this site fetches")}
{_line("exceptions", (), "guarantees this site agrees to give up, by name; see docs/operations.md")}
{_line("answer_after", 0.0, "seconds: answers leave at multiples of this; 0: at once")}
{_line("metrics", "aggregate", "most a study may learn of accuracy: none | aggregate | per-node")}
{_line("approve", "ask", "ask: `secure-fl node approve` counts | listed: only the next line does")}
{_line("approved", (), "study hashes")}
# epsilon = 10.0                      # the most that all studies together may spend on each data set, with delta
# delta = 1e-6                        # far below 1 / units; docs/privacy.md
# upload_parameters = 1000000         # the most of a model that leaves in one round

[monitoring]
{_line("address", "", '"127.0.0.1:9464": /metrics and /health')}

{_STATE_AND_LOG}"""


def operator_file(name: str, *, coordinator: str, fingerprint: str) -> str:
    """`operator.toml`."""
    return f"""\
# The study lead {name}. `secure-fl study submit`, `status`, `stop`, `export` and `report` read this file.

[operator]
{_dialing(coordinator, fingerprint)}
{_identity("operator", name)}
{_line("proxy", "", "http://[user:password@]host:port; empty: HTTPS_PROXY and NO_PROXY")}

{_STATE_AND_LOG}"""


def _dialing(coordinator: str, fingerprint: str) -> str:
    return "\n".join(
        (
            _line("coordinator", coordinator, "host:port, a host that stands in the coordinator's certificate"),
            _line("fingerprint", fingerprint, "the coordinator's; `secure-fl pki fingerprint`"),
        )
    )


def _identity(role: str, name: str) -> str:
    return "\n".join(
        (
            _line("certificate", f"{role}-{name}.pem", "comes with the authority's reply"),
            _line("key", "", "the certificate's name with .key"),
            _line("signing_key", "", "the certificate's name with .signing.key"),
            _line("ca", "ca.pem", "the consortium's authority"),
            _line("crl", "crl.pem", "who is revoked; read again whenever it changes"),
        )
    )


def _dataset(one: Dataset) -> str:
    head = section_name("datasets", one.id)
    units = "# units = 500" if one.units is None else f"units = {one.units}"
    return "\n".join(
        (
            f"{head:{_COLUMN}}# the id by which studies name the data; one section for each",
            _line("path", one.path, "never leaves this site; docs/tasks.md says what a task reads from it"),
            _line("format", "", "what the task wants to know about the file; empty: its usual format"),
            f"{units:{_COLUMN}}# about how many records, or groups, to train on, rounded; for differential privacy",
            "",
        )
    )


_NO_DATASET = """\
# [datasets.ID]                       # the id by which studies name the data; one section for each
# path = "data.npz"                   # never leaves this site
"""


def _line(key: str, value: Any, comment: str) -> str:
    """One setting as TOML, with a comment in its column."""
    if isinstance(value, tuple):  # tomli_w would give every entry a line of its own
        written = f"{key} = [{', '.join(_value(one) for one in value)}]"
    else:
        written = f"{key} = {_value(value)}"
    return f"{written:{_COLUMN - 1}} # {comment}"


def _value(value: Any) -> str:
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


_STATE_AND_LOG = "\n".join(
    (
        "[state]",
        _line("folder", "state", 'a service: "/var/lib/secure-fl"'),
        "",
        "[log]",
        _line("level", "info", "debug | info | warning | error"),
        _line("format", "text", "text | json"),
        "",
    )
)

FILES: Mapping[str, str] = {role: f"{role}.toml" for role in ("coordinator", "node", "operator")}
