"""Which operator submitted a study."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns; studies from before have no owner."""
    op.add_column("studies", sa.Column("owner", sa.String(64), nullable=True))
    op.add_column("studies", sa.Column("owner_fingerprint", sa.String(64), nullable=True))
