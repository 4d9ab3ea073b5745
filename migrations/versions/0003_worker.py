"""0003 worker."""

from alembic import op

from qinglong_sql.migrate import run_frozen

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_frozen(op, __file__)


def downgrade() -> None:
    raise NotImplementedError("say here why there is no way back, or how to go it")
