"""Middleware of the explorer: response headers, and limits on request bodies.

This is plain ASGI. Starlette's ``BaseHTTPMiddleware`` puts a channel of its own between client and application, and an
application behind it does not learn that a client has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

RETRY_SECONDS = 5


def refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Build the response to a refused request: JSON with the reason."""
    return JSONResponse({"error": message}, status, headers)


def refuse_for_now(message: str) -> JSONResponse:
    """Build the response to a request that may be repeated later."""
    return refuse(503, f"{message}; try again in {RETRY_SECONDS} seconds", {"Retry-After": str(RETRY_SECONDS)})


class ResponseHeaders:
    """Add headers to every response."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class BodyLimit:
    """Read each request's body before the application does, and refuse what is too large or too slow.

    Bytes are counted as they arrive, whatever ``Content-Length`` and ``Transfer-Encoding`` say, and nothing is read
    beyond the limit.

    Args:
        app: the application behind the limit.
        single: the largest number of bytes in one body.
        total: the largest number of bytes in all bodies that are in memory at once.
        seconds: how long a body may take to arrive.
    """

    def __init__(self, app: ASGIApp, single: int, total: int, seconds: float) -> None:
        self._app = app
        self._single = single
        self._total = total
        self._seconds = seconds
        self._in_memory = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        body = bytearray()
        try:
            try:
                refusal = await asyncio.wait_for(self._read(body, Headers(scope=scope), receive), self._seconds)
            except asyncio.TimeoutError:
                refusal = refuse(408, f"the body did not arrive within {self._seconds:g} seconds")
            except ConnectionError:
                return None
            if refusal is not None:
                refusal.headers["Connection"] = "close"  # the rest of the body is not read
                return await refusal(scope, receive, send)
            return await self._app(scope, _replay(bytes(body), receive), send)
        finally:
            self._in_memory -= len(body)

    async def _read(self, body: bytearray, headers: Headers, receive: Receive) -> JSONResponse | None:
        """Append what arrives to ``body``; return a refusal instead of reading too much."""
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._single:  # int() refuses thousands of digits
            return self._too_large(f"{int(announced[:20]):,}")
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left before its request was complete")
            chunk = message.get("body", b"")
            body += chunk
            self._in_memory += len(chunk)
            if len(body) > self._single:
                return self._too_large(f"more than {self._single:,}")
            if self._in_memory > self._total:
                return refuse_for_now("too many large requests arrive at once")
            if not message.get("more_body", False):
                return None

    def _too_large(self, size: str) -> JSONResponse:
        return refuse(413, f"the body has {size} bytes; at most {self._single:,} are accepted")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that yields the whole body first, and then the messages of the original channel."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
