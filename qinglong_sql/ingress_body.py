"""Bodies of requests and answers, each with an end: who sends or takes nothing is let go."""

import asyncio
from typing import Final

from aiohttp import web

from qinglong_sql.ingress_refusal import Refusal
from qinglong_sql.ingress_visitor import Visitor
from qinglong_sql.wire import JSON

STALL_S: Final = 5.0  # for which a client may send, or take, nothing
BODY_S: Final = 30.0
CHUNK: Final = 64 * 1024


async def whole(request: web.BaseRequest, size: int) -> bytes:
    """A body of so many bytes. Raises Refusal when it stalls or breaks off."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    parts: list[bytes] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + BODY_S
    try:
        while size:
            async with asyncio.timeout_at(min(end, loop.time() + STALL_S)):
                part = await request.content.readany()
            if not part:
                break
            parts.append(part)
            size -= len(part)
    except TimeoutError:
        raise Refusal(408, "slow", "the body does not come", "slow", closes=True) from None
    except (web.RequestPayloadError, ConnectionError):
        size = 1
    if size:
        raise Refusal(400, "body", "the body broke off", "body", closes=True)
    return b"".join(parts)


async def send(
    request: web.BaseRequest, visitor: Visitor, answer: web.StreamResponse, body: bytes
) -> None:
    """All of an answer, as long as somebody takes it. Raises ConnectionError."""
    answer.content_type = JSON
    answer.content_length = len(body)
    answer.headers["Cache-Control"] = "no-store"
    answer.headers["Server"] = "qinglong-sql"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(STALL_S) as bound:
            await answer.prepare(request)
            for at in range(0, len(body), CHUNK):
                bound.reschedule(loop.time() + STALL_S)
                await answer.write(body[at : at + CHUNK])
                await request.writer.drain()  # aiohttp does it for what is larger alone
            await answer.write_eof()
    except TimeoutError:
        visitor.end()
        raise ConnectionResetError("nobody takes the answer") from None
