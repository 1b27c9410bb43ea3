"""The explorer's API, asked as a client would."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")

from whymatch import Explainer
from whymatch.explanation import Explanation
from whymatch.web.server import STREAM, Limits, create_app

PAIR = {"text_a": "The coffee is not good.", "text_b": "This is bad coffee."}


def client(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


def ask(app, method, path, **kwargs):
    async def once():
        async with client(app) as asks:
            return await asks.request(method, path, **kwargs)

    return asyncio.run(once())


@pytest.fixture
def explainer(load):
    return Explainer(load(), layer=2)


@pytest.fixture
def app(explainer):
    return create_app([explainer], Limits(characters=200, documents=5, body_bytes=5000, waiting=2))


def test_explain_answers_what_the_explainer_says(app, explainer):
    answer = ask(app, "POST", "/api/explain", json=PAIR)
    assert answer.status_code == 200
    why = Explanation.from_dict(answer.json())
    assert why.score == pytest.approx(explainer.explain(*PAIR.values()).score)
    assert why.layer == 2
    assert "links" in answer.json()["view"]


def test_the_layer_and_the_groups_can_be_chosen(app):
    data = ask(app, "POST", "/api/explain", json=PAIR | {"layer": 1, "groups": "words"}).json()
    assert data["settings"]["layer"] == 1
    assert data["units"] == ["word", "word"]


def test_rank_answers_hits(app):
    documents = ["Two dogs run", "bad coffee", "The coffee is not good."]
    data = ask(app, "POST", "/api/rank", json={"query": "bad coffee", "documents": documents, "top": 2}).json()
    assert [hit["rank"] for hit in data["hits"]] == [1, 2]
    assert data["hits"][0]["index"] == 1
    assert data["hits"][0]["answers"][0]["query_word"]


def test_models_health_and_docs(app, explainer):
    (model,) = ask(app, "GET", "/api/models").json()
    assert model["name"] == explainer.settings.model
    assert model["layers"] == 3
    assert ask(app, "GET", "/healthz").json()["status"] == "ok"
    assert "/api/explain" in ask(app, "GET", "/openapi.json").json()["paths"]
    assert "API" in ask(app, "GET", "/docs").text


@pytest.mark.parametrize("path", ["/", "/docs", "/app.js", "/docs.js", "/app.css", "/view.js", "/view.css"])
def test_every_file_comes_with_a_strict_policy_and_from_here(app, path):
    answer = ask(app, "GET", path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith(
        "default-src 'none'; script-src 'self'; style-src 'self'"
    )
    text = answer.text.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in text
    assert "https://" not in text
    assert "<script>" not in text


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"text_a": "x"}, 422, "text_b: Field required"),
        (PAIR | {"text_a": "x" * 201}, 422, "text_a has 201 characters; at most 200 are taken"),
        (PAIR | {"text_a": 3}, 422, "text_a: Input should be a valid string"),
        (PAIR | {"layer": 9}, 422, "layer=9 is out of range; this model has 3 blocks"),
        (PAIR | {"model": "/etc/passwd"}, 422, "model='/etc/passwd' is not served here; choose one of"),
        (PAIR | {"groups": "letters"}, 422, "groups: Input should be 'words' or 'sentences'"),
        (PAIR | {"other": 1}, 422, "other: Extra inputs are not permitted"),
        (PAIR | {"text_a": "x" * 6000}, 413, "at most 5,000 are taken"),
        (PAIR | {"text_a": "\ud800"}, 422, "surrogate"),
    ],
)
def test_bad_requests_are_named(app, body, code, message):
    answer = ask(app, "POST", "/api/explain", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == code
    assert message in answer.json()["error"]


def test_too_many_documents_are_refused(app):
    answer = ask(app, "POST", "/api/rank", json={"query": "x", "documents": ["y"] * 6})
    assert answer.status_code == 422
    assert "6 given; at most 5 are taken" in answer.json()["error"]
    assert ask(app, "POST", "/api/rank", json={"query": "x", "documents": []}).status_code == 422


def test_a_body_without_a_length_is_refused(app):
    async def pieces():
        yield b"{}"

    answer = ask(app, "POST", "/api/explain", content=pieces(), headers={"content-type": "application/json"})
    assert answer.status_code == 411


def test_another_host_name_is_refused(app):
    assert ask(app, "GET", "/", headers={"host": "evil.example"}).status_code == 400
    assert ask(app, "GET", "/", headers={"host": "localhost:8000"}).status_code == 200


def test_progress_is_streamed_before_the_result(app):
    answer = ask(app, "POST", "/api/explain", json=PAIR, headers={"accept": STREAM})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[0]["progress"] == 0
    assert Explanation.from_dict(lines[-1]["result"]).error < 1e-3
    assert all("progress" in line for line in lines[:-1])
    bad = ask(app, "POST", "/api/explain", json=PAIR | {"text_a": "\x00" * 3}, headers={"accept": STREAM})
    assert set(json.loads(bad.text.splitlines()[-1])) <= {"result", "error"}


def test_a_full_queue_answers_503(app, explainer, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(type(explainer), "explain", lambda *_, **__: go.wait(20) and None)
    monkeypatch.setattr("whymatch.web.server.payload", lambda _: {})

    async def crowd():
        async with client(app) as asks:
            first = [asyncio.create_task(asks.post("/api/explain", json=PAIR)) for _ in range(3)]
            await asyncio.sleep(0.5)
            refused = await asks.post("/api/explain", json=PAIR)
            go.set()
            return refused, [await one for one in first]

    refused, answered = asyncio.run(crowd())
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert "wait already" in refused.json()["error"]
    assert [one.status_code for one in answered] == [200, 200, 200]


def test_work_that_nobody_waits_for_is_stopped():
    from whymatch.jacobian import WATCH
    from whymatch.web.server import Stopped, Worker

    worker, steps, ended = Worker(2), [], []

    def job():
        try:
            for step in range(200):
                WATCH.get()(step / 200)
                steps.append(step)
                time.sleep(0.02)
        except Stopped:
            ended.append(True)
            raise

    async def leave():
        task = asyncio.create_task(worker.run(job))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.sleep(0.3)

    asyncio.run(leave())
    assert ended == [True]
    assert len(steps) < 100
    assert worker.waiting == 0
