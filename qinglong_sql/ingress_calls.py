"""What the ingress does for a request, once its body is there: check it, call a step, keep a log.

On threads: everything here may wait. Of the database there are the steps of ql_worker and no
others, and of a worker what its certificate says.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

from qinglong_sql.ca_folder import CaFault, CaRefused
from qinglong_sql.ca_issue import sign_renewal
from qinglong_sql.canonical import digest, parse_json
from qinglong_sql.certificate import Principal
from qinglong_sql.errors import Malformed, NotReady
from qinglong_sql.ingress_refusal import Refusal, refusal_of
from qinglong_sql.log_store import LogStore, take
from qinglong_sql.port import only_worker_steps
from qinglong_sql.store import Row
from qinglong_sql.wire import LOG_HEADERS, LOG_OPTIONAL, Route, encoded, params_of
from qinglong_sql.wire_check import Unlike, checked

KNOWN_LOGS: Final = 4_096  # who may write which log; it never changes
T = TypeVar("T")
NUMBER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


class Steps(Protocol):
    """A store, as far as the ingress knows one."""

    def call(self, step: str, /, **params: object) -> list[Row]:
        """See qinglong_sql.store.Store."""


class Calls:
    """Answers requests of workers; may be used by all threads.

    told: gets what is a fault of ours. ca_dir: the folder of the authority that renews, if any.
    """

    def __init__(
        self,
        store: Steps,
        logs: LogStore,
        told: Callable[[Exception], object],
        ca_dir: Path | None = None,
        logged: Callable[[int], object] = lambda octets: None,
    ) -> None:
        self._store, self._logs, self._told, self._logged = store, logs, told, logged
        self._ca_dir = ca_dir
        self._lock = Lock()
        self._known: OrderedDict[str, tuple[str, str, int]] = OrderedDict()

    def audit(self, principal: Principal, route: str) -> int | Refusal:
        """Keep who asks for what, before anything of it is read; the minute that it stands in."""
        return self._answered(lambda: int(self._call(
            "audit_worker",
            p_worker_id=principal.worker_id,
            p_route=route,
            p_certificate=principal.serial,
        )[0]["minute_ms"]))  # fmt: skip

    def answer(
        self, route: Route, headers: Mapping[str, str], body: bytes, principal: Principal
    ) -> bytes | Refusal:
        """The body of an answer with 200, or why there is none. Never raises."""
        if route.name == "log":
            return self._answered(lambda: self._log(headers, body, principal))
        return self._answered(lambda: self._json(route, body, principal))

    def _answered(self, work: Callable[[], T]) -> T | Refusal:
        try:
            return work()
        except Exception as error:
            return refusal_of(error, self._told)

    def _call(self, step: str, **params: object) -> list[Row]:
        only_worker_steps(step)
        return self._store.call(step, **params)

    def _json(self, route: Route, raw: bytes, principal: Principal) -> bytes:
        try:
            body = checked(parse_json(raw), route.body)
        except Unlike as error:
            raise Refusal(400, Malformed.code, str(error), "body") from None
        except ValueError:  # its words may quote the body
            words = "the body is no JSON that every reader takes alike"
            raise Refusal(400, Malformed.code, words, "body") from None
        if route.step is None:
            return encoded({"certificate": self._renewed(body["csr"], principal)})
        rows = self._call(route.step, **params_of(route, body, principal.worker_id))
        return encoded({"rows": rows})

    def _renewed(self, csr: str, principal: Principal) -> str:
        assert self._ca_dir is not None  # else there is no such route
        try:
            pem = sign_renewal(self._ca_dir, csr.encode(), principal)
        except CaRefused as error:
            raise Refusal(400, Malformed.code, str(error), "body") from None
        except (CaFault, OSError) as error:
            raise NotReady(f"the authority cannot renew: {error}") from error
        return pem.decode()

    def _log(self, headers: Mapping[str, str], chunk: bytes, principal: Principal) -> bytes:
        said = _said(headers)
        run_id, step_key, number = self._place(said, principal)
        dropped = said.get("QL-Dropped")
        size = take(self._logs, run_id, step_key, number, said["QL-Offset"], chunk, dropped)
        self._logged(len(chunk))
        return encoded({"size": size})

    def _place(self, said: Mapping[str, Any], principal: Principal) -> tuple[str, str, int]:
        """Whose log it is. Who held an attempt at a fence is a fact, so it is asked once."""
        command = {
            "attempt_id": said["QL-Attempt"],
            "fence": said["QL-Fence"],
            "token": said["QL-Token"],
            "worker_id": principal.worker_id,
        }
        command_text = encoded([command]).decode()
        key = digest(command_text)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        row = self._call("attempt_standing", p_commands=command_text)[0]
        if row["outcome"] != "applied":
            status = {"QL400": 400, "QL404": 404}.get(row["code"], 410)
            words = "no such attempt, or not at this fence with this token and certificate"
            raise Refusal(status, row["code"] or "QL410", words, "step")
        place = (str(row["run_id"]), str(row["step_key"]), int(row["number"]))
        with self._lock:
            self._known[key] = place
            if len(self._known) > KNOWN_LOGS:
                self._known.popitem(last=False)
        return place


def _said(headers: Mapping[str, str]) -> dict[str, Any]:
    """What the headers of a piece of a log say. Raises Refusal."""
    found: dict[str, Any] = {}
    for name, schema in LOG_HEADERS.items():
        text = headers.get(name)
        if text is None:
            if name in LOG_OPTIONAL:
                continue
            raise Refusal(400, Malformed.code, f"the header {name} is missing", "body")
        value: object = text
        if schema["type"] == "integer" and NUMBER.fullmatch(text):
            value = int(text)
        try:
            found[name] = checked(value, schema, name)
        except Unlike as error:
            raise Refusal(400, Malformed.code, str(error), "body") from None
    return found
