"""A switchable TCP endpoint on loopback: what a virtual address or a proxy is to a real cluster.

    python3 relay.py PORT FILE

FILE holds `HOST PORT` of where connections lead to; or nothing: then who comes is cut off at once,
as by a host that refuses; or `silent`: then who comes is never answered, as by a host without
power. When it changes, all that are open are cut off. It judges nothing and knows nothing of
PostgreSQL; standard library alone, ended by TERM.
"""

import asyncio
import contextlib
import sys
from pathlib import Path

LOOK_S = 0.02
CHUNK = 1 << 16
SILENT = ("silent", 0)


def target(file: Path) -> tuple[str, int] | None:
    """Where connections lead to now; None while they lead nowhere."""
    try:
        words = file.read_text(encoding="ascii").split()
        if words == ["silent"]:
            return SILENT
        host, port = words
        return host, int(port)
    except (OSError, ValueError):
        return None


class Relay:
    """The open connections, and where new ones go."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._target = target(file)
        self._open: set[asyncio.StreamWriter] = set()

    async def watch(self) -> None:
        """Cut all off whenever the file says something else; never returns."""
        while True:
            await asyncio.sleep(LOOK_S)
            found = target(self._file)
            if found != self._target:
                self._target = found
                for one in tuple(self._open):
                    one.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side or the switch ends it."""
        leads = self._target
        self._open.add(writer)
        back: asyncio.StreamWriter | None = None
        try:
            if leads is None:
                return
            if leads == SILENT:
                while await reader.read(CHUNK):
                    pass
                return
            there, back = await asyncio.open_connection(*leads)
            self._open.add(back)
            if leads != self._target:  # it was switched while we connected
                return
            ways = [asyncio.create_task(pass_on(reader, back)),
                    asyncio.create_task(pass_on(there, writer))]  # fmt: skip
            _, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for one in rest:
                one.cancel()
        except OSError:
            pass
        finally:
            for end in (writer, back):
                if end is not None:
                    self._open.discard(end)
                    end.transport.abort()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until it ends; the last bytes are out before it returns."""
    with contextlib.suppress(OSError):
        while some := await reader.read(CHUNK):
            writer.write(some)
            await writer.drain()
        writer.write_eof()


async def main(port: int, file: Path) -> None:
    """Listen until the process is ended. Raises OSError when the port is taken."""
    relay = Relay(file)
    async with await asyncio.start_server(relay.serve, "127.0.0.1", port):
        await relay.watch()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
