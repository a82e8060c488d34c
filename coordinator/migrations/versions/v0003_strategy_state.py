"""What a strategy remembers at the coordinator, committed with the model that it goes with."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column."""
    op.add_column("models", sa.Column("state", sa.JSON, nullable=True))
