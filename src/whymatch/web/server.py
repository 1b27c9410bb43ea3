"""The explorer's server.

It answers from loopback by default, to the host it was started for, with models chosen when it starts. Derivatives
take turns in any case, so one worker does them; what waits is bounded, and what nobody waits for any more is stopped.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from whymatch import Explainer, __version__
from whymatch.jacobian import WATCH
from whymatch.text import shown
from whymatch.views.page import payload, static

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STREAM = "application/x-ndjson"
RETRY_SECONDS = 5


@dataclass(frozen=True)
class Limits:
    """What one request, and all that wait, may ask for."""

    characters: int = 20_000
    documents: int = 200
    body_bytes: int = 2_000_000
    waiting: int = 8


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="One of /api/models; the first if not given.")
    layer: int | None = Field(
        None, description="0 is the input embeddings, -1 the output; the server's own if not given."
    )


class ExplainBody(_Body):
    text_a: str
    text_b: str
    groups: Literal["words", "sentences"] | None = Field(None, description="Derive words or sentences, not tokens.")


class RankBody(_Body):
    query: str
    documents: list[str] = Field(min_length=1)
    top: int = Field(10, ge=1, le=50)


class Stopped(Exception):  # noqa: N818 nobody waits for the result any more
    pass


class Worker:
    """One thread that derives, and a bounded number of jobs that wait for it."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="whymatch")
        self._most = most
        self.waiting = 0

    @property
    def full(self) -> bool:
        return self.waiting > self._most

    async def run(self, job: Callable[[], Any], told: Callable[[float], None] | None = None) -> Any:
        """Run a job in its turn. Cancelled here, it stops there, between two chunks."""
        stop = threading.Event()
        loop = asyncio.get_running_loop()

        def watch(done: float) -> None:
            if stop.is_set():
                raise Stopped
            if told is not None:
                loop.call_soon_threadsafe(told, done)

        def work() -> Any:
            if stop.is_set():
                raise Stopped
            WATCH.set(watch)
            return job()

        self.waiting += 1
        try:
            return await loop.run_in_executor(self._pool, copy_context().run, work)
        finally:
            stop.set()
            self.waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def create_app(explainers: Sequence[Explainer], limits: Limits | None = None, hosts: Sequence[str] = ()) -> FastAPI:
    """The application; ``hosts`` are the names it answers to beside those of loopback."""
    if not explainers:
        raise ValueError("the explorer needs at least one model")
    limits = limits or Limits()
    known = {explainer.settings.model: explainer for explainer in explainers}
    worker = Worker(limits.waiting)
    layers: dict[tuple[str, int], Explainer] = {}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()

    app = FastAPI(
        title="whymatch",
        version=__version__,
        description="Why does this encoder say these two texts match?",
        docs_url=None,  # FastAPI's pages load their scripts from elsewhere; /docs here does not
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]", *hosts])

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length")
        if request.method == "POST":
            if length is None or not length.isdigit():
                return _refused(411, "say how long the body is: Content-Length is missing")
            if int(length) > limits.body_bytes:
                return _refused(413, f"the body has {int(length):,} bytes; at most {limits.body_bytes:,} are taken")
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return _refused(422, f"{where}: {first['msg']}")

    @app.exception_handler(ValueError)
    async def bad_value(_: Request, error: ValueError) -> JSONResponse:
        return _refused(422, str(error))

    def chosen(body: _Body) -> Explainer:
        name = next(iter(known)) if body.model is None else body.model
        if name not in known:
            raise ValueError(f"model={shown(name)} is not served here; choose one of {', '.join(map(repr, known))}")
        own = known[name]
        if body.layer is None:
            return own
        if (name, body.layer) not in layers:
            layers[name, body.layer] = own.at_layer(body.layer)
        return layers[name, body.layer]

    def check(**texts: str) -> None:
        for name, text in texts.items():
            if len(text) > limits.characters:
                raise ValueError(f"{name} has {len(text):,} characters; at most {limits.characters:,} are taken")

    async def answer(request: Request, job: Callable[[], Any]) -> Response:
        if worker.full:
            busy = _refused(503, f"{worker.waiting} requests wait already; try again in {RETRY_SECONDS} seconds")
            busy.headers["Retry-After"] = str(RETRY_SECONDS)
            return busy
        if STREAM in request.headers.get("accept", ""):
            return StreamingResponse(_stream(worker, job), media_type=STREAM)
        task = asyncio.create_task(worker.run(job))
        try:
            while not task.done():
                await asyncio.wait([task], timeout=0.25)
                if not task.done() and await request.is_disconnected():
                    return _refused(499, "nobody waits any more")
            return JSONResponse(task.result())
        except (ArithmeticError, TypeError) as error:
            return _refused(422, str(error))
        finally:
            task.cancel()

    @app.post("/api/explain", summary="Why two texts have their score")
    async def explain(request: Request, body: ExplainBody) -> Response:
        check(text_a=body.text_a, text_b=body.text_b)
        explainer = chosen(body)
        return await answer(request, lambda: payload(explainer.explain(body.text_a, body.text_b, groups=body.groups)))

    @app.post("/api/rank", summary="The best documents for a query, explained")
    async def rank(request: Request, body: RankBody) -> Response:
        if len(body.documents) > limits.documents:
            raise ValueError(f"documents: {len(body.documents)} given; at most {limits.documents} are taken")
        check(query=body.query, **{f"document {i}": text for i, text in enumerate(body.documents)})
        explainer = chosen(body)

        def job() -> dict[str, Any]:
            found = explainer.rank(body.query, body.documents, top=body.top)
            data = found.to_dict()
            for hit, plain in zip(found, data["hits"], strict=True):
                plain["explanation"] = payload(hit.explanation)
            return data

        return await answer(request, job)

    @app.get("/api/models", summary="The models that this server was started with")
    async def models() -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "layers": one.num_layers,
                "layer": one.settings.layer,
                "similarity": one.settings.similarity,
                "tolerance": one.settings.tolerance,
            }
            for name, one in known.items()
        ]

    @app.get("/healthz", summary="Is it up, and how much waits?")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "version": __version__, "waiting": worker.waiting}

    kinds = {
        "html": "text/html; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "css": "text/css; charset=utf-8",
    }

    def serve_file(path: str, content: str, kind: str) -> None:
        async def send() -> Response:
            return Response(content, media_type=kinds[kind])

        app.add_api_route(path, send, include_in_schema=False)

    own_files = files("whymatch.web").joinpath("static")
    for path, name in (
        ("/", "index.html"),
        ("/docs", "docs.html"),
        ("/app.js", "app.js"),
        ("/docs.js", "docs.js"),
        ("/app.css", "app.css"),
    ):
        serve_file(path, own_files.joinpath(name).read_text(encoding="utf-8"), name.rpartition(".")[2])
    for name in ("view.js", "view.css"):
        serve_file(f"/{name}", static(name), name.rpartition(".")[2])
    return app


def _refused(code: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=code)


async def _stream(worker: Worker, job: Callable[[], Any]) -> AsyncIterator[str]:
    """Lines of JSON: how far the work is, and then the result or an error. A reader who leaves stops it."""
    told: asyncio.Queue[float] = asyncio.Queue()
    task = asyncio.create_task(worker.run(job, told.put_nowait))
    try:
        yield json.dumps({"progress": 0.0, "waiting": worker.waiting}) + "\n"
        while not task.done():
            waiter = asyncio.create_task(told.get())
            await asyncio.wait([task, waiter], timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            done = waiter.result() if waiter.done() else None
            waiter.cancel()
            yield json.dumps({"progress": done}) + "\n"
        try:
            yield json.dumps({"result": task.result()}) + "\n"
        except (ValueError, ArithmeticError, TypeError) as error:
            yield json.dumps({"error": str(error)}) + "\n"
    finally:
        task.cancel()
