"""The tables of the coordinator's database, and the states of a round. `migrations` makes them."""

from __future__ import annotations

import sqlalchemy as sa

_tables = sa.MetaData()
studies = sa.Table(
    "studies",
    _tables,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("settings", sa.LargeBinary),
    sa.Column("state", sa.String),
    sa.Column("reason", sa.String),
    sa.Column("created", sa.Float),
    sa.Column("owner", sa.String),
    sa.Column("owner_fingerprint", sa.String),
)
rounds = sa.Table(
    "rounds",
    _tables,
    sa.Column("study_id", sa.String, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("kind", sa.String),
    sa.Column("state", sa.String),
    sa.Column("reason", sa.String),
    sa.Column("invited", sa.JSON),
    sa.Column("model_version", sa.Integer),
    sa.Column("asked", sa.JSON),
    sa.Column("started", sa.Float),
    sa.Column("record", sa.JSON),
)
phases = sa.Table(
    "phases",
    _tables,
    sa.Column("study_id", sa.String, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("phase", sa.String),
)
answers = sa.Table(
    "answers",
    _tables,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("study_id", sa.String),
    sa.Column("number", sa.Integer),
    sa.Column("attempt", sa.Integer),
    sa.Column("phase", sa.String),
    sa.Column("node", sa.String),
    sa.Column("header", sa.LargeBinary),
    sa.Column("bytes", sa.Integer),
)
openings = sa.Table(
    "openings",
    _tables,
    sa.Column("study_id", sa.String, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("rows", sa.JSON),
)
models = sa.Table(
    "models",
    _tables,
    sa.Column("study_id", sa.String, primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("digest", sa.LargeBinary),
    sa.Column("object", sa.LargeBinary),
    sa.Column("state", sa.JSON),
)

COLLECTING = "collecting"
COMMITTED = "committed"  # with the round's record
MERGED = "merged"  # another circle's part of a committed round
ABORTED = "aborted"
GIVEN_UP = "given-up"  # aborted, and so is its circle's turn
