"""Studies, rounds, phases, answers, models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the first schema."""
    op.create_table(
        "studies",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("settings", sa.LargeBinary, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
    )
    op.create_table(
        "rounds",
        sa.Column("study_id", sa.String(64), sa.ForeignKey("studies.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("invited", sa.JSON, nullable=False),
        sa.Column("model_version", sa.Integer, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("record", sa.JSON),
    )
    op.create_table(
        "phases",
        sa.Column("study_id", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True),
        sa.Column("phase", sa.String(128), nullable=False),
    )
    op.create_table(
        "answers",
        sa.Column("sequence", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("study_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("phase", sa.String(128), nullable=False),
        sa.Column("node", sa.String(128), nullable=False),
        sa.Column("header", sa.LargeBinary, nullable=False),
        sa.Column("bytes", sa.Integer, nullable=False),
        sa.UniqueConstraint("study_id", "number", "attempt", "phase", "node"),
    )
    op.create_table(
        "models",
        sa.Column("study_id", sa.String(64), sa.ForeignKey("studies.id"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("object", sa.LargeBinary(32), nullable=False),
    )
