"""The explorer's server: its pages, and a JSON API.

It listens on loopback by default, answers only to the host names it was started with, and serves the models that were
chosen then.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, TypeAlias

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field, StrictInt
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from whymatch import Explainer, __version__
from whymatch.reading.readings import Both
from whymatch.views.page import VIEWS, empty_page, payload, ranking_payload
from whymatch.web import answers
from whymatch.web.middleware import BodyLimit, ResponseHeaders, refuse
from whymatch.web.worker import STREAM, JobResponse, Worker
from whymatch.words import quote

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

NO_FRAMES = "'none'"

# Some systems call JavaScript plain text, which browsers then refuse to run.
mimetypes.add_type("text/javascript", ".js")


@dataclass(frozen=True)
class Limits:
    """What requests may ask for.

    Attributes:
        characters: in one text.
        documents: in one ranking.
        body_bytes: in one request's body.
        total_bytes: in the bodies of all requests at once.
        body_seconds: for a body to arrive.
        waiting: requests that wait for the one that is being answered.
    """

    characters: int = 20_000
    documents: int = 200
    body_bytes: int = 2_000_000
    total_bytes: int = 64_000_000
    body_seconds: float = 30.0
    waiting: int = 8


Unit: TypeAlias = Literal["words", "sentences"]
Groups: TypeAlias = Unit | tuple[Unit | None, Unit | None] | None
GROUPS = Field(None, description="Explain words or sentences instead of tokens, of both sides or of each.")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(None, description="One of /api/models; by default the first.")
    layer: int | None = Field(
        None, description="0 is the input embeddings, -1 the output; by default what suits the model and the request."
    )
    task: str | tuple[str | None, str | None] | None = Field(
        None, description="query or document for both sides, or for each; by default as the server was started."
    )
    prompt_name: str | tuple[str | None, str | None] | None = Field(
        None, description="The name of the model's prompt for both sides, or for each; likewise."
    )


class ExplainBody(_Body):
    text_a: str
    text_b: str
    groups: Groups = GROUPS


class DocumentBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str
    id: str | StrictInt | None = None
    title: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class RankBody(_Body):
    query: str
    documents: list[str | DocumentBody] = Field(min_length=1)
    top: int = Field(10, ge=1, le=50)
    groups: Groups = GROUPS


class ContrastBody(_Body):
    query: str
    one: str | DocumentBody
    other: str | DocumentBody | None = Field(None, description="The second document; or give a background.")
    background: list[str] | None = Field(
        None, min_length=1, description="Documents whose mean takes the place of the second."
    )


class HighlightBody(_Body):
    query: str
    document: str | DocumentBody
    unit: Literal["words", "sentences", "tokens"] = "words"
    top: int | None = Field(None, ge=1, description="Keep only so many of the strongest spans.")


def create_app(
    explainers: Sequence[Explainer],
    limits: Limits | None = None,
    hosts: Sequence[str] = (),
    task: Both[str | None] = None,
    prompt_name: Both[str | None] = None,
    embed_in: Sequence[str] = (),
) -> FastAPI:
    """Create the explorer's application.

    Args:
        explainers: one for each model that is served; the first is the default.
        limits: what requests may ask for.
        hosts: host names that the server answers to, besides those of loopback.
        task, prompt_name: how models read queries and documents, where a request does not say; by default as their
            ``encode_query`` and ``encode_document`` do.
        embed_in: sites that may show the explorer in a frame; by default none.
    """
    for site in embed_in:
        if not re.fullmatch(r"https?://[\w.-]+(:\d+)?", site):
            raise ValueError(f"{quote(site)} is not the address of a site, such as https://example.org")
    if not explainers:
        raise ValueError("the explorer needs at least one model")
    limits = limits or Limits()
    explainer_of = {explainer.settings.model: explainer for explainer in explainers}
    worker = Worker(limits.waiting)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()

    app = FastAPI(
        title="whymatch",
        version=__version__,
        description="Why does this encoder say these two texts match?",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere; ours do not
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.worker = worker
    # The last one added is the first to see a request.
    app.add_middleware(BodyLimit, limits.body_bytes, limits.total_bytes, limits.body_seconds)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]", *hosts])
    frames = f"frame-ancestors {' '.join(embed_in) or NO_FRAMES}"
    policy = f"{HEADERS['Content-Security-Policy']}; {frames}"
    app.add_middleware(ResponseHeaders, {**HEADERS, "Content-Security-Policy": policy})

    @app.exception_handler(RequestValidationError)
    async def refuse_invalid(_: Request, error: RequestValidationError) -> Response:
        every = error.errors()
        # What is neither a text nor a document is wrong in two ways: of an object, what it lacks as a document counts.
        first = next((each for each in every if _of_document(each)), every[0])
        if first["type"] == "json_invalid":
            return refuse(422, f"the body is not JSON: {first['ctx']['error']} at character {first['loc'][1]}")
        return refuse(422, _describe_invalid(first))

    @app.exception_handler(ValueError)
    async def refuse_value(_: Request, error: ValueError) -> Response:
        return refuse(422, str(error))

    @app.exception_handler(HTTPException)
    async def refuse_request(_: Request, error: HTTPException) -> Response:
        return refuse(error.status_code, error.detail, error.headers)

    # At another layer, an explainer may have to look at its model first: not while other requests wait for an answer.
    def choose(body: _Body) -> Explainer:
        name = next(iter(explainer_of)) if body.model is None else body.model
        if name not in explainer_of:
            served = ", ".join(map(repr, explainer_of))
            raise ValueError(f"the model {quote(name)} is not served here; choose one of {served}")
        explainer = explainer_of[name]
        return explainer if body.layer is None else explainer.at_layer(body.layer)

    def choose_fast(body: _Body) -> Explainer:
        return choose(body).at_detail("fast")

    def reading(body: _Body) -> dict[str, Any]:
        return {
            "task": task if body.task is None else body.task,
            "prompt_name": prompt_name if body.prompt_name is None else body.prompt_name,
        }

    def check_texts(**texts: str | DocumentBody | None) -> None:
        for name, given in texts.items():
            text = given.text if isinstance(given, DocumentBody) else given
            if text is None:
                continue
            called = _name_field(name.replace("__", "."))
            if len(text) > limits.characters:
                raise ValueError(f"{called} has {len(text):,} characters; at most {limits.characters:,} are accepted")
            if not text.strip():
                raise ValueError(f"{called} is empty; give a text")

    def check_many(documents: Sequence[str | DocumentBody], name: str) -> None:
        if len(documents) > limits.documents:
            raise ValueError(f"{len(documents)} documents given; at most {limits.documents} are accepted")
        check_texts(**{f"{name}__{i}": each for i, each in enumerate(documents)})

    def plain(document: str | DocumentBody) -> Any:
        return document if isinstance(document, str) else document.model_dump()

    def described(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
        refused = {"model": answers.ErrorAnswer}
        return {
            200: {"model": model, "description": "The result"},
            422: {**refused, "description": "What is wrong with the request"},
            503: {**refused, "description": "Too many requests are waiting"},
        }

    def answer(request: Request, job: Callable[[], Any]) -> Response:
        return JobResponse(worker, job, lines=STREAM in request.headers.get("accept", ""))

    @app.post("/api/explain", summary="Explain the score of two texts", responses=described(answers.ExplanationAnswer))
    async def explain(request: Request, body: ExplainBody) -> Response:
        check_texts(text_a=body.text_a, text_b=body.text_b)
        explainer = await run_in_threadpool(choose, body)
        options = reading(body) | {"groups": body.groups}
        return answer(request, lambda: payload(explainer.explain(body.text_a, body.text_b, **options)))

    @app.post(
        "/api/rank",
        summary="Find the best documents for a query, and explain them",
        responses=described(answers.RankingAnswer),
    )
    async def rank(request: Request, body: RankBody) -> Response:
        check_texts(query=body.query)
        check_many(body.documents, "documents")
        explainer = await run_in_threadpool(choose_fast, body)
        options = reading(body) | {"groups": body.groups}

        def job() -> dict[str, Any]:
            documents = [plain(document) for document in body.documents]
            return ranking_payload(explainer.rank(body.query, documents, top=body.top, **options))

        return answer(request, job)

    @app.post(
        "/api/contrast",
        summary="Say why a query scores higher with one document than with another",
        responses=described(answers.ContrastAnswer),
    )
    async def contrast(request: Request, body: ContrastBody) -> Response:
        check_texts(query=body.query, one=body.one, other=body.other)
        check_many(body.background or (), "background")
        if (body.other is None) == (body.background is None):
            raise ValueError("give a second document or a background, and not both")
        explainer, options = await run_in_threadpool(choose_fast, body), reading(body)

        def job() -> dict[str, Any]:
            other = explainer.background(body.background, **options) if body.background else plain(body.other or "")
            return explainer.contrast(body.query, plain(body.one), other, **options).to_dict()

        return answer(request, job)

    @app.post(
        "/api/highlight",
        summary="Say what each word of a document adds to its score with a query",
        responses=described(answers.HighlightsAnswer),
    )
    async def highlight(request: Request, body: HighlightBody) -> Response:
        check_texts(query=body.query, document=body.document)
        explainer, options = await run_in_threadpool(choose_fast, body), reading(body)

        def job() -> dict[str, Any]:
            return explainer.highlight(body.query, plain(body.document), body.unit, body.top, **options).to_dict()

        return answer(request, job)

    @app.get("/api/models", summary="List the models that are served", response_model=list[answers.ModelAnswer])
    def models() -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "layers": explainer.num_layers,
                "layer": explainer.settings.layer,
                "list_layer": explainer.at_detail("fast").settings.layer,
                "path": explainer.settings.path,
                "similarity": explainer.settings.similarity,
                "tolerance": explainer.settings.tolerance,
            }
            for name, explainer in explainer_of.items()
        ]

    @app.get(
        "/healthz",
        summary="Report that the server is up, and how many requests it is working on",
        response_model=answers.HealthAnswer,
    )
    async def health() -> dict[str, Any]:
        return {"status": "ok", "version": __version__, "waiting": worker.jobs}

    @app.get("/page/{view}", include_in_schema=False)  # what the explorer saves results into
    async def page(view: str) -> Response:
        if view not in VIEWS:
            raise HTTPException(404)
        return Response(empty_page(view), media_type="text/html")

    folders: list[str | tuple[str, str]] = [("whymatch.web", "static"), ("whymatch.views", "static")]
    app.mount("/", StaticFiles(packages=folders, html=True))
    return app


# What a person calls the fields of a request.
_NAMES = {
    "text_a": "the first text",
    "text_b": "the second text",
    "query": "the query",
    "one": "the first document",
    "other": "the second document",
    "document": "the document",
    "documents": "the list of documents",
    "background": "the list of documents of the background",
    "top": "the number of hits or spans",
    "layer": "the layer",
    "groups": "what is explained (the groups)",
    "unit": "the unit of the spans",
    "model": "the name of the model",
    "task": "the task",
    "prompt_name": "the name of the prompt",
}
DOCUMENT = DocumentBody.__name__


def _name_field(place: str) -> str:
    """Call a field of a request by what it is: documents.3 is document 4."""
    name, _, rest = place.partition(".")
    number = rest.partition(".")[0]
    if number.isdecimal():
        return f"document {int(number) + 1}{' of the background' if name == 'background' else ''}"
    return _NAMES.get(name, f"{name!r}")


def _of_document(error: dict[str, Any]) -> bool:
    """Whether an error is about a field of a document that was given as an object."""
    return DOCUMENT in error["loc"] and error["loc"][-1] != DOCUMENT


def _describe_document(error: dict[str, Any]) -> str:
    """Say which field of a document is wrong."""
    place, field = error["loc"][1:], error["loc"][error["loc"].index(DOCUMENT) + 1]
    name = _name_field(".".join(map(str, place)))
    if error["type"] == "missing":
        return f"{name} has no {field}"
    if error["type"] == "extra_forbidden":
        return f"{name} has a field {quote(field)}, which is not known: put it into its metadata"
    return f"the {field} of {name} is {quote(error.get('input'))}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _describe_invalid(error: dict[str, Any]) -> str:
    """Put what is wrong with a request into a sentence."""
    place = ".".join(map(str, error["loc"][1:]))
    if not place:
        missing = error["type"] == "missing"
        return "the request has no body" if missing else "the body of the request is not an object with its fields"
    if _of_document(error):
        return _describe_document(error)
    name, kind = _name_field(place), error["type"]
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"{place!r} is not known; see /docs for what a request may have"
    if kind in ("string_type", "model_attributes_type", "model_type"):
        return f"{name} is not a text: {quote(error.get('input'))}"
    if kind in ("too_short", "list_type"):
        return f"{name} is empty; give at least one" if kind == "too_short" else f"{name} is not a list"
    return f"{name} is {quote(error.get('input'))}: {error['msg'][:1].lower()}{error['msg'][1:]}"


def run(app: FastAPI, host: str, port: int) -> None:
    """Serve the application until a signal ends it; requests that are being answered then are stopped."""

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.state.worker.stop()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=5)
    with suppress(KeyboardInterrupt):
        Server(config).run()
