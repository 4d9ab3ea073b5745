"""Two rooms with networks of their own and a line between them that loses what it is told to.

A room is a network namespace; the line is a pair of tun devices, and a thread that carries packets
from one to the other. So loss is silent, as on a real network: no reset, no error. Root only.
"""

import ctypes
import fcntl
import os
import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.prove import CannotRun

NEWNET = 0x40000000
TUNSETIFF, TUN_PLAIN = 0x400454CA, 0x0001 | 0x1000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFFLAGS = 0x8916, 0x891C, 0x8914
UP = 0x1 | 0x40
TCP = 6
T = TypeVar("T")
Flow = tuple[int, int]  # port in the first room, port in the second one


class Room:
    """A network namespace. What runs `inside` is in it, and processes that it starts."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.namespace = self.device = -1
        _in_thread(self._make)

    def inside(self, work: Callable[[], T]) -> T:
        """Do it on a thread of its own in this room."""

        def there() -> T:
            _checked(ctypes.CDLL(None, use_errno=True).setns(self.namespace, NEWNET), "setns")
            return work()

        return _in_thread(there)

    def close(self) -> None:
        for fd in (self.device, self.namespace):
            if fd >= 0:
                os.close(fd)
        self.device = self.namespace = -1

    def _make(self) -> None:
        try:
            _checked(ctypes.CDLL(None, use_errno=True).unshare(NEWNET), "unshare")
            self.namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            self.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(self.device, TUNSETIFF, struct.pack("16sH22x", b"line0", TUN_PLAIN))
        except OSError as error:
            self.close()
            raise CannotRun(
                f"networks of our own: {error}; they need root and /dev/net/tun"
            ) from None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for name, address in ((b"lo", "127.0.0.1"), (b"line0", self.address)):
                for call, said in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
                    place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(said))
                    fcntl.ioctl(asking, call, struct.pack("16s16s8x", name, place))
                fcntl.ioctl(asking, SIOCSIFFLAGS, struct.pack("16sH22x", name, UP))


@dataclass(slots=True)
class Line:
    """Carries packets between two rooms until it is closed; what it does not carry it forgets.

    cut: directions in which nothing comes through, "there" is from the first room to the second.
    loss: of every packet, 0 to 1. Both may be changed at any time.
    """

    here: Room
    there: Room
    seed: int = 0
    cut: frozenset[str] = frozenset()
    loss: float = 0.0
    carried: int = 0
    lost: int = 0
    flows: set[Flow] = field(default_factory=set)
    _forgotten: set[Flow] = field(default_factory=set)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _over: tuple[int, int] = (-1, -1)

    def begin(self) -> None:
        self._over = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="line")
        self._thread.start()

    def forget(self) -> int:
        """Carry nothing more of any connection that there is; new ones come through. How many."""
        with self._turn:
            fresh = self.flows - self._forgotten
            self._forgotten |= self.flows
        return len(fresh)

    def close(self) -> None:
        if self._thread:
            os.write(self._over[1], b".")
            self._thread.join()
            for fd in self._over:
                os.close(fd)
            self._thread = None

    def _carry(self) -> None:
        dice = random.Random(self.seed)
        ways = {self.here.device: ("there", self.there.device),
                self.there.device: ("back", self.here.device)}  # fmt: skip
        while True:
            ready, _, _ = select.select([*ways, self._over[0]], [], [])
            if self._over[0] in ready:
                return
            for fd in ready:
                way, other = ways[fd]
                try:
                    packet = os.read(fd, 65536)
                    if self._passes(packet, way, dice):
                        os.write(other, packet)
                        self.carried += 1
                    else:
                        self.lost += 1
                except OSError:  # full, or a packet that no device takes
                    self.lost += 1

    def _passes(self, packet: bytes, way: str, dice: random.Random) -> bool:
        if way in self.cut or (self.loss and dice.random() < self.loss):
            return False
        if packet[:1] != b"\x45" or packet[9] != TCP:  # IPv4 without options
            return packet[:1] == b"\x45"
        ports: Flow = struct.unpack("!HH", packet[20:24])
        flow = ports if way == "there" else (ports[1], ports[0])
        with self._turn:
            self.flows.add(flow)
            return flow not in self._forgotten


@contextmanager
def two_rooms(seed: int = 0) -> Iterator[tuple[Room, Room, Line]]:
    """A first room, a second one, and the line between them. Raises CannotRun."""
    here = Room("10.99.0.1")
    try:
        there = Room("10.99.0.2")
        line = Line(here, there, seed)
        try:
            line.begin()
            yield here, there, line
        finally:
            line.close()
            there.close()
    finally:
        here.close()


def _checked(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _in_thread(work: Callable[[], T]) -> T:
    """A thread that has entered a namespace is not used again."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((work(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    result, error = found[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
