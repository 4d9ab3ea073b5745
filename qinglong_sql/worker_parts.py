"""What a worker process is put together from (qinglong_sql.control_parts is its sister)."""

import os
from collections.abc import Callable

import qinglong_sql
from qinglong_sql.control_log import Log
from qinglong_sql.holding import Held
from qinglong_sql.port import Port
from qinglong_sql.setting_file import SettingFault
from qinglong_sql.shipping import Shipping
from qinglong_sql.shipping_log import Author
from qinglong_sql.tending import Tending
from qinglong_sql.watched import Watched
from qinglong_sql.worker import Worker
from qinglong_sql.worker_settings import WorkerSettings
from qinglong_sql.workplace import End, Gone, passed_on

OFFERS = 32  # at once; their specs come in one answer
Words = Callable[[BaseException], str]


def through_ingress(settings: WorkerSettings, url: str, log: Log, words: Words) -> Tending:
    """Through the ingress, as whom the certificate says. Raises SettingFault for its files."""
    from qinglong_sql.certificate import TlsFault, holder_of
    from qinglong_sql.papers import Renewal, mended
    from qinglong_sql.remote import Papers, Remote

    assert settings.certificate and settings.key and settings.ca
    papers = Papers(*(one.absolute() for one in (settings.certificate, settings.key, settings.ca)))
    try:
        if mended(papers):
            log.say("info", "certificate", "finished the renewal of an earlier process")
        name = holder_of(papers.certificate).worker_id
        remote = Remote(url, papers, lease_ms=settings.lease)
    except TlsFault as error:
        raise SettingFault(str(error)) from None
    if settings.name not in (None, name):
        raise SettingFault(f"{papers.certificate} is of worker {name}, not of {settings.name}")
    door = Watched(remote, remote.place, log)

    def send(author: Author, offset: int, chunk: bytes, dropped: int | None) -> int:
        return door.watch(remote.log, author, offset, chunk, dropped)

    def ask(request: str) -> str | None:
        return door.watch(remote.certificate, request)

    state = settings.state_folder(name)
    shipping = Shipping(send, state, note=lambda said: log.say("warning", "logs", said))
    worker = _worker(settings, door, name, log, shipping.keep)
    renewal = Renewal(papers, name, ask, log)
    _begin(settings, worker, name, remote.place, log)
    return Tending(
        worker, door, log, words, name=name, drain_ms=settings.drain_timeout,
        shipping=shipping, chore=renewal,
    )  # fmt: skip


def with_login(
    settings: WorkerSettings,
    port: Port,
    place: str,
    log: Log,
    words: Words,
) -> Tending:
    """With a login of its own; `place` names the database, without a secret."""
    name = settings.name or ""
    door = Watched(port, f"PostgreSQL ({place})", log)
    worker = _worker(settings, door, name, log, lambda held: None)
    _begin(settings, worker, name, place, log)
    return Tending(worker, door, log, words, name=name, drain_ms=settings.drain_timeout)


def _worker(
    settings: WorkerSettings,
    port: Port,
    name: str,
    log: Log,
    on_end: Callable[[Held], object],
) -> Worker:
    def ended(held: Held) -> None:
        on_end(held)
        if isinstance(held.end, End) and held.end.how == "not_started":
            return
        how = _how(held.end)
        log.say(
            "info",
            "ended",
            f"run {held.run_id}: {held.step_key} #{held.number} {how}",
            run_id=held.run_id,
            step_key=held.step_key,
            number=held.number,
            how=how,
        )

    return Worker(
        port,
        settings.state_folder(name),
        queues=settings.queue,
        slots=settings.slots,
        lease_ms=settings.lease,
        offers=OFFERS,
        stop_grace_ms=settings.grace,
        inherited=passed_on(os.environ),
        note=lambda said: log.say("warning", "fault", said),
        name=name,
        base_dir=settings.base_dir and settings.base_dir.absolute(),
        on_end=ended,
    )


def _how(end: End | Gone | None) -> str:
    """How an execution ended, in a word or two."""
    if isinstance(end, End):
        return f"exit {end.exit_code}" if end.how == "exit" else end.how
    return f"gone: {end.reason}" if end else "was settled before"


def _begin(settings: WorkerSettings, worker: Worker, name: str, place: str, log: Log) -> None:
    queues = ", ".join(settings.queue)
    log.say(
        "info",
        "begin",
        f"worker {qinglong_sql.__version__} as pid {os.getpid()}: {name} through {place}, queues"
        f" {queues}, {settings.slots} slots, in {worker.state_dir}",
        pid=os.getpid(),
        version=qinglong_sql.__version__,
        worker=name,
        state=str(worker.state_dir),
    )
