"""A small certificate authority in a folder: who may be a worker, and which door is ours.

For installations that have no authority of their own. Whoever changes something holds the
folder's lock meanwhile, and every file is written whole or not at all.
"""

from pathlib import Path
from typing import Final

from qinglong_sql import ca_folder
from qinglong_sql.ca_folder import CaFault, CaRefused, Issued, held, make_folder
from qinglong_sql.ca_issue import DAY_MS, Made, issue, now_or, renew, sign_renewal
from qinglong_sql.ca_sign import new_authority, new_request
from qinglong_sql.certificate import ms_of

__all__ = (
    "CaFault",
    "CaRefused",
    "Issued",
    "Made",
    "init",
    "issue",
    "listed",
    "new_request",
    "renew",
    "revoke",
    "sign_renewal",
)

AUTHORITY_MS: Final = 10 * 365 * DAY_MS
NAME: Final = "qinglong-sql authority"


def init(folder: Path, *, validity_ms: int = AUTHORITY_MS, now_ms: int | None = None) -> int:
    """Make an authority in a folder that is not there or empty; until when, in epoch milliseconds.

    Raises CaRefused, OSError.
    """
    now = now_or(now_ms)
    key, certificate = new_authority(NAME, now, now + validity_ms)
    try:
        make_folder(folder, key, certificate, now)
    except OSError as error:
        if isinstance(error, FileExistsError) or folder.exists():
            raise CaRefused(f"{folder} is there already, and is not empty: name another") from None
        raise
    return ms_of(certificate.not_valid_after_utc)


def revoke(folder: Path, what: str, *, now_ms: int | None = None) -> tuple[list[Issued], bool]:
    """Revoke all certificates of a name, or the one of a serial number, and write the list again.

    They, and whether anything changed: what was revoked stays so. Raises CaRefused, CaFault,
    OSError.
    """
    now = now_or(now_ms)
    with held(folder, now) as authority:
        issued = authority.ledger.issued
        serial = what.replace(":", "").lower().lstrip("0")
        found = [one for one in issued if one.name == what]
        found = found or [one for one in issued if one.serial == serial]
        if not found:
            raise CaRefused(f"no certificate has the name or serial number {what!r}: `ca list`")
        wanted = {one.serial for one in found if one.revoked_at_ms is None}
        if wanted:
            authority.revoke(wanted, now)
        serials = {one.serial for one in found}
        return [one for one in authority.ledger.issued if one.serial in serials], bool(wanted)


def listed(folder: Path) -> tuple[int, list[Issued]]:
    """Until when the authority is good, and every certificate it signed. Raises CaFault."""
    issued = ca_folder.ledger_of(folder).issued
    return ms_of(ca_folder.certificate_of(folder).not_valid_after_utc), issued
