"""${message}"""

from alembic import op

from qinglong_sql.migrate import run_frozen

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    run_frozen(op, __file__)


def downgrade() -> None:
    raise NotImplementedError("say here why there is no way back, or how to go it")
