"""Which blocks an attempt asks for, where a strategy has circles send some of them only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column; attempts from before ask for everything."""
    op.add_column("rounds", sa.Column("asked", sa.JSON, nullable=True))
