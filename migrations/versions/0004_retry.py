"""0004 retry."""

from alembic import context, op

from qinglong_sql.migrate import run_frozen

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_frozen(op, __file__)


def downgrade() -> None:
    if context.get_revision_argument() is not None:  # all the way, 0001 drops everything
        raise NotImplementedError(
            "triggers know the retries of their runs: restore a copy of the database instead"
        )
