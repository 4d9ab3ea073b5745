"""Something of which there is only so much, shared by workers: memory, threads (DESIGN §12)."""

import asyncio
from collections import Counter


class Exhausted(Exception):
    """There was none left within the time."""


class Share:
    """`total` units for all, of which one holder has at most `each`, or the one thing it asks for.

    Who waits is served in order, but for those whose own share is what they wait for. One event
    loop's alone.
    """

    def __init__(self, total: int, each: int) -> None:
        self.total, self.each = total, each
        self.free = total
        self._held: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}

    async def take(self, holder: str, size: int, within_s: float) -> None:
        """Take so many units, to be given back. Raises Exhausted.

        What is larger than all there is can never be had.
        """
        if self._fits(holder, size) and not self._waiting:
            self._grant(holder, size)
            return
        if size > self.total:
            raise Exhausted
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = holder, size
        self._serve()
        try:
            async with asyncio.timeout(within_s):
                await turn
        except TimeoutError:
            if not self._served(turn):
                raise Exhausted from None
        except asyncio.CancelledError:
            if self._served(turn):
                self.give(holder, size)
            raise
        finally:
            self._waiting.pop(turn, None)

    def give(self, holder: str, size: int) -> None:
        """Give units back."""
        self.free += size
        self._held[holder] -= size
        if self._held[holder] <= 0:
            del self._held[holder]
        self._serve()

    def _served(self, turn: asyncio.Future[None]) -> bool:
        return turn.done() and not turn.cancelled()

    def _fits(self, holder: str, size: int) -> bool:
        held = self._held.get(holder, 0)
        return size <= self.free and (held == 0 or held + size <= self.each)

    def _grant(self, holder: str, size: int) -> None:
        self.free -= size
        self._held[holder] += size

    def _serve(self) -> None:
        for turn, (holder, size) in list(self._waiting.items()):
            if turn.done():
                continue
            if self._fits(holder, size):
                self._grant(holder, size)
                turn.set_result(None)
            elif size > self.free:
                return  # what is large is not passed by for ever
