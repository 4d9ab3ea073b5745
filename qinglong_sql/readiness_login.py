"""Whether a login may do what its process needs and nothing else of ours (DESIGN §8)."""

from collections.abc import Iterator, Sequence

from qinglong_sql.readiness_words import quoted
from qinglong_sql.store.catalog import Catalog, Role

# What reaches past every grant: `alter role … nosuperuser` takes it away.
MIGHT = (
    ("superuser", "is a superuser", "nosuperuser"),
    ("creates_roles", "may create roles", "nocreaterole"),
    ("creates_databases", "may create databases", "nocreatedb"),
    ("replicates", "may replicate", "noreplication"),
    ("bypasses", "passes by row security", "nobypassrls"),
)


def wrong_of_login(catalog: Catalog, groups: Sequence[str]) -> Iterator[str]:
    """Words for all that this login lacks, or has too much.

    Its memberships among our roles are exactly the groups, and none is a role of PostgreSQL's own
    (`pg_…`). Roles of the DBA's own (`rds_iam`, a team) are fine as long as they are powerless.
    """
    roles = catalog.roles()
    login = next(role for role in roles if role.is_login)
    who = f"login {login.name}"
    for role in roles:
        yield from _mighty(who, role, catalog.standing.database)
    if login.superuser:  # is a member of everything
        return
    if _reserved(login.name):
        yield f"{who} is one of our own roles: make a login and grant {', '.join(groups)} to it"
        return
    for role in roles:
        if role.is_login or role.name in groups or not _reserved(role.name):
            continue
        yield (
            f"{who} is a member of {role.name}, which it does not need:"
            f" revoke {role.name} from {quoted(login.name)}"
        )
    for group, held in zip(groups, catalog.holds(groups), strict=True):
        if not held:
            yield f"{who} lacks the rights of {group}: grant {group} to {quoted(login.name)}"


def _mighty(who: str, role: Role, database: str) -> Iterator[str]:
    said = who if role.is_login else f"{who} may become {role.name}, which"
    for word, words, undo in MIGHT:
        if getattr(role, word):
            yield f"{said} {words}: alter role {quoted(role.name)} {undo}"
    if role.owns_database:
        yield f"{said} owns this database: alter database {quoted(database)} owner to another role"


def _reserved(name: str) -> bool:
    return name.startswith(("ql_", "pg_"))
