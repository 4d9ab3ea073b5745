"""0003 worker."""

from alembic import context, op

from qinglong_sql.migrate import run_frozen

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_frozen(op, __file__)


def downgrade() -> None:
    if context.get_revision_argument() is not None:  # all the way, 0001 drops everything
        raise NotImplementedError(
            "it would forget who used the ingress: restore a copy of the database instead"
        )
