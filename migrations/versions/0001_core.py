"""0001 core: everything up to the first release."""

from alembic import op

from qinglong_sql.migrate import drop_everything, run_frozen

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_frozen(op, __file__)


def downgrade() -> None:
    drop_everything(op)
