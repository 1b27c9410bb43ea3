"""The explorer's API, asked as a client would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")

from conftest import serve
from whymatch import Explainer, progress
from whymatch.results.explanation import Explanation
from whymatch.web.server import Limits, create_app
from whymatch.web.worker import STREAM

PAIR = {"text_a": "The coffee is not good.", "text_b": "This is bad coffee."}


def ask(app, method, path, **kwargs):
    """Send a request to an application that no server is in front of."""

    async def send():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **kwargs)

    return asyncio.run(send())


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
    assert data["a"]["unit"] == data["b"]["unit"] == "word"


def test_each_side_can_have_groups_of_its_own(app):
    documents = ["The coffee is not good. Nobody drank it."]
    body = {"query": "bad coffee", "documents": documents, "groups": ["words", "sentences"]}
    (hit,) = ask(app, "POST", "/api/rank", json=body).json()["hits"]
    assert [(span["start"], span["end"]) for span in hit["highlights"]][:2] == [(0, 23), (24, 40)]
    data = ask(app, "POST", "/api/explain", json=PAIR | {"groups": [None, "sentences"]}).json()
    assert (data["a"]["unit"], data["b"]["unit"]) == ("token", "sentence")
    refused = ask(app, "POST", "/api/rank", json=body | {"groups": ["words", "letters"]})
    assert refused.status_code == 422
    assert "groups" in refused.json()["error"]


def test_rank_answers_hits(app):
    documents = ["Two dogs run", "bad coffee", "The coffee is not good."]
    data = ask(app, "POST", "/api/rank", json={"query": "bad coffee", "documents": documents, "top": 2}).json()
    assert [hit["rank"] for hit in data["hits"]] == [1, 2]
    assert data["hits"][0]["index"] == 1
    assert data["hits"][0]["answers"][0]["query_word"]


def test_prompts_are_the_models_own_unless_a_request_says_otherwise(tmp_path):
    import zoo

    explainer = Explainer(str(zoo.prompted(tmp_path)), layer=2)
    model, texts = explainer.model, tuple(PAIR.values())
    app = create_app([explainer])
    own = float(model.similarity(model.encode_query(texts[0]), model.encode_document(texts[1])))
    assert ask(app, "POST", "/api/explain", json=PAIR).json()["score"] == pytest.approx(own, abs=1e-6)
    other = float(model.similarity(*(model.encode(text, prompt_name="other") for text in texts)))
    body = {"query": texts[0], "documents": [texts[1]]}
    asked = ask(app, "POST", "/api/rank", json=body | {"prompt_name": "other"}).json()["hits"][0]["score"]
    assert asked == pytest.approx(other, abs=1e-6)
    started = create_app([explainer], prompt_name=("query", "other"))
    mixed = float(model.similarity(model.encode_query(texts[0]), model.encode(texts[1], prompt_name="other")))
    assert ask(started, "POST", "/api/rank", json=body).json()["hits"][0]["score"] == pytest.approx(mixed, abs=1e-6)


def test_documents_come_back_with_their_ids(app):
    documents = [{"id": 7, "title": "T", "text": "bad coffee", "metadata": {"n": 1}}, "Two dogs run"]
    data = ask(app, "POST", "/api/rank", json={"query": "bad coffee", "documents": documents}).json()
    hit = data["hits"][0]
    assert (hit["id"], hit["title"], hit["metadata"], hit["text"]) == ("7", "T", {"n": 1}, "bad coffee")
    assert sum(span["score"] for span in hit["highlights"]) == pytest.approx(hit["score"], abs=1e-3)


def test_hits_come_with_what_is_usual(app, explainer):
    query, documents = "bad coffee", ["The coffee is not good.", "Two dogs run", "bad coffee"]
    data = ask(app, "POST", "/api/rank", json={"query": query, "documents": documents, "top": 1}).json()
    contrast = explainer.at_detail("fast").contrast(query, "bad coffee", explainer.background(documents))
    usual = data["background"]
    assert usual["score"] == pytest.approx(contrast.score_b, abs=1e-6)
    assert sum(usual["totals"]) + usual["beside"] == pytest.approx(usual["score"], abs=1e-3)
    assert len(usual["totals"]) == len(data["hits"][0]["explanation"]["a"]["tokens"])


def test_contrast_and_highlight_answer_what_the_explainer_says(app, explainer):
    query, one, other = "bad coffee", "The coffee is not good.", "Two dogs run"
    data = ask(app, "POST", "/api/contrast", json={"query": query, "one": one, "other": {"text": other}}).json()
    contrast = explainer.contrast(query, one, other)
    assert data["difference"] == pytest.approx(contrast.difference)
    assert [row["word"] for row in data["by_query_word"]] == [share.word for share in contrast.by_query_word]
    data = ask(app, "POST", "/api/contrast", json={"query": query, "one": one, "background": [one, other]}).json()
    assert data["b"] is None
    assert data["name_b"] == "the mean of 2 documents"
    data = ask(app, "POST", "/api/highlight", json={"query": query, "document": one, "unit": "tokens"}).json()
    expected = explainer.at_detail("fast").highlight(query, one, "tokens")
    assert [span["score"] for span in data["highlights"]] == pytest.approx([span.score for span in expected])


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("contrast", {"query": "x", "one": "y"}, "give a second document or a background, and not both"),
        ("contrast", {"query": "x", "one": " ", "other": "z"}, "the first document is empty"),
        ("contrast", {"query": "x", "one": {"txt": "z"}, "other": "z"}, "the first document has no text"),
        ("rank", {"query": "x", "documents": ["y", {"id": 3}]}, "document 2 has no text"),
        (
            "rank",
            {"query": "x", "documents": [{"text": "y", "url": "z"}]},
            "document 1 has a field 'url', which is not",
        ),
        (
            "rank",
            {"query": "x", "documents": [{"text": "y", "title": 3}]},
            "the title of document 1 is 3: input should",
        ),
        ("rank", {"query": "x", "documents": ["y"], "top": 0}, "the number of hits or spans is 0: input should be"),
        ("highlight", {"query": "x"}, "the document is missing"),
        ("highlight", {"query": "", "document": "y"}, "the query is empty; give a text"),
        ("rank", {"query": "x", "documents": ["y", "z" * 201]}, "document 2 has 201 characters"),
        ("rank", {"query": "x", "documents": []}, "the list of documents is empty"),
    ],
)
def test_what_is_wrong_with_a_search_is_a_sentence(app, path, body, message):
    answer = ask(app, "POST", f"/api/{path}", json=body)
    assert answer.status_code == 422
    assert message in answer.json()["error"]


def test_answers_have_the_shapes_that_are_described(app):
    """The models of web/answers.py forbid what they do not name; requests for both sides' groups are among them."""
    from whymatch.web import answers

    documents = ["The coffee is not good.", "Two dogs run"]
    for path, body, model in [
        ("explain", PAIR, answers.ExplanationAnswer),
        ("explain", PAIR | {"groups": [None, "sentences"]}, answers.ExplanationAnswer),
        ("rank", {"query": "bad coffee", "documents": documents}, answers.RankingAnswer),
        ("contrast", {"query": "bad coffee", "one": documents[0], "other": documents[1]}, answers.ContrastAnswer),
        ("contrast", {"query": "bad coffee", "one": documents[0], "background": documents}, answers.ContrastAnswer),
        ("highlight", {"query": "bad coffee", "document": documents[0]}, answers.HighlightsAnswer),
    ]:
        model.model_validate(ask(app, "POST", f"/api/{path}", json=body).json())
    schema = ask(app, "GET", "/openapi.json").json()
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert answer.get("$ref") or answer.get("items"), f"{path} says what it answers"


def test_an_empty_page_for_each_view_and_no_other(app):
    assert 'id="data">[]<' in ask(app, "GET", "/page/whymatchContrast").text
    assert ask(app, "GET", "/page/alert").status_code == 404


def test_models_health_and_docs(app, explainer):
    (model,) = ask(app, "GET", "/api/models").json()
    assert model["name"] == explainer.settings.model
    assert model["layers"] == 3
    assert ask(app, "GET", "/healthz").json()["status"] == "ok"
    assert "/api/explain" in ask(app, "GET", "/openapi.json").json()["paths"]
    assert ask(app, "GET", "/docs").headers["location"].endswith("/docs/")
    assert "API" in ask(app, "GET", "/docs/").text


@pytest.mark.parametrize("path", ["/", "/docs/", "/app.js", "/docs/docs.js", "/app.css", "/view.js", "/view.css"])
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
        ({"text_a": "x"}, 422, "the second text is missing"),
        (PAIR | {"text_a": "x" * 201}, 422, "the first text has 201 characters; at most 200 are accepted"),
        (PAIR | {"text_a": 3}, 422, "the first text is not a text: 3"),
        (PAIR | {"layer": 9}, 422, "layer 9 is out of range; this model has 3 blocks"),
        (PAIR | {"model": "/etc/passwd"}, 422, "the model '/etc/passwd' is not served here; choose one of"),
        (PAIR | {"groups": "letters"}, 422, "(the groups) is 'letters': input should be 'words' or 'sentences'"),
        (PAIR | {"other": 1}, 422, "'other' is not known; see /docs"),
        (PAIR | {"text_a": "x" * 6000}, 413, "at most 5,000 are accepted"),
        (PAIR | {"text_a": "\ud800"}, 422, "surrogate"),
        (PAIR | {"text_a": "  "}, 422, "the first text is empty; give a text"),
    ],
)
def test_bad_requests_are_named(app, body, code, message):
    answer = ask(app, "POST", "/api/explain", content=json.dumps(body), headers={"content-type": "application/json"})
    assert answer.status_code == code
    assert message in answer.json()["error"]


def test_only_sites_that_were_named_may_show_it_in_a_frame(app, explainer):
    assert "frame-ancestors 'none'" in ask(app, "GET", "/").headers["content-security-policy"]
    framed = create_app([explainer], embed_in=["https://example.org"])
    assert ask(framed, "GET", "/").headers["content-security-policy"].endswith("frame-ancestors https://example.org")
    with pytest.raises(ValueError, match="'\\*; script-src \\*' is not the address of a site"):
        create_app([explainer], embed_in=["*; script-src *"])


def test_too_many_documents_are_refused(app):
    answer = ask(app, "POST", "/api/rank", json={"query": "x", "documents": ["y"] * 6})
    assert answer.status_code == 422
    assert "6 documents given; at most 5 are accepted" in answer.json()["error"]
    assert ask(app, "POST", "/api/rank", json={"query": "x", "documents": []}).status_code == 422


def test_another_host_name_is_refused(app):
    assert ask(app, "GET", "/", headers={"host": "evil.example"}).status_code == 400
    assert ask(app, "GET", "/", headers={"host": "localhost:8000"}).status_code == 200


def test_progress_is_streamed_before_the_result(app):
    answer = ask(app, "POST", "/api/explain", json=PAIR, headers={"accept": STREAM})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[0]["progress"] == 0
    assert Explanation.from_dict(lines[-1]["result"]).error < 1e-3
    assert all("progress" in line for line in lines[:-1])


def test_an_error_of_the_job_ends_the_stream(app):
    body, headers = json.dumps(PAIR | {"text_a": "\ud800"}), {"content-type": "application/json", "accept": STREAM}
    lines = ask(app, "POST", "/api/explain", content=body, headers=headers).text.splitlines()
    assert "lone surrogate (U+D800)" in json.loads(lines[-1])["error"]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b"{", 422, "the body is not JSON: "),
        (b"\xff", 400, ""),
        (b"[]", 422, "the body of the request is not an object"),
        (b"", 422, "the request has no body"),
    ],
)
def test_bodies_that_are_not_a_request_are_named(app, body, code, message):
    answer = ask(app, "POST", "/api/explain", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, message in answer.json()["error"]) == (code, True), answer.text


def test_a_deeply_nested_body_is_refused(app):
    answer = ask(app, "POST", "/api/explain", content=b"[" * 5000, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)  # how deep the parser goes depends on the version of Python
    assert "body" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/nothing", "/../server.py", "/..%2fserver.py", "/%2e%2e/server.py", "//etc/passwd"])
def test_other_paths_are_not_found(app, path):
    answer = ask(app, "GET", path)
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})


# --- over a real socket


POLL = 0.01


@pytest.fixture
def slow(monkeypatch):
    """An explainer that works until it is told to end; it reports progress every few milliseconds."""
    work = SlowWork()
    monkeypatch.setattr(Explainer, "explain", work)
    monkeypatch.setattr("whymatch.web.server.payload", lambda _: {})
    yield work
    work.end.set()


class SlowWork:
    def __init__(self) -> None:
        self.end = threading.Event()
        self.begun = self.stopped = 0

    def __call__(self, *_texts, **_options):
        self.begun += 1
        try:
            for step in range(3000):
                progress.report(step / 3000)
                if self.end.wait(POLL):
                    break
        except Exception:
            self.stopped += 1
            raise


def until(condition, seconds=10.0):
    """Wait for a condition; fail if it takes far longer than it may."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(POLL)


def request(body: bytes, accept: str = "*/*", framing: str = "", extra_headers: str = "") -> bytes:
    """A request as it is sent; ``framing`` replaces the header that says where the body ends."""
    framing = framing or f"Content-Length: {len(body)}\r\n"
    start = "POST /api/explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{start}Accept: {accept}\r\n{extra_headers}{framing}\r\n".encode() + body


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def waiting(port: int) -> int:
    return httpx.get(f"http://127.0.0.1:{port}/healthz").json()["waiting"]


@pytest.mark.parametrize("accept", ["application/json", STREAM])
def test_a_client_that_leaves_stops_its_job_and_frees_its_slot(app, slow, accept):
    with serve(app) as port:
        with connect(port) as client:
            client.sendall(request(json.dumps(PAIR).encode(), accept))
            until(lambda: slow.begun)
            assert waiting(port) == 1
        until(lambda: slow.stopped == 1)
        until(lambda: waiting(port) == 0)


@pytest.mark.parametrize("accept", ["application/json", STREAM])
def test_a_server_that_stops_stops_its_jobs_and_says_so(app, slow, accept):
    with serve(app) as port, connect(port) as running, connect(port) as waits:
        for client in (running, waits):
            client.sendall(request(json.dumps(PAIR).encode(), accept, extra_headers="Connection: close\r\n"))
        until(lambda: slow.begun and waiting(port) == 2)
        app.state.worker.stop()
        for client in (running, waits):
            answer = b"".join(iter(lambda client=client: client.recv(10_000), b""))
            assert b'{"error":"the server is stopping"}' in answer
        assert (slow.begun, slow.stopped) == (1, 1)


@pytest.mark.parametrize("accept", ["application/json", STREAM])
def test_clients_that_leave_while_they_wait_never_begin(app, slow, accept):
    with serve(app) as port:
        served, *others = (connect(port) for _ in range(3))
        served.sendall(request(json.dumps(PAIR).encode(), accept))
        until(lambda: slow.begun == 1)
        for client in others:
            client.sendall(request(json.dumps(PAIR).encode(), accept))
        until(lambda: waiting(port) == 3)
        for client in others:
            client.close()
        until(lambda: waiting(port) == 1)
        served.close()
        until(lambda: waiting(port) == 0)
        until(lambda: slow.stopped == 1)
        slow.end.set()
        assert httpx.post(f"http://127.0.0.1:{port}/api/explain", json=PAIR).status_code == 200
        assert slow.begun == 2


@pytest.mark.parametrize("accept", ["application/json", STREAM])
def test_of_200_at_once_exactly_as_many_as_there_are_slots_are_accepted(app, slow, accept):
    async def crowd(port):
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=60) as client:
            requests = [
                asyncio.create_task(client.post("/api/explain", json=PAIR, headers={"accept": accept}))
                for _ in range(200)
            ]
            while sum(request.done() for request in requests) < 197:
                await asyncio.sleep(POLL)
            slow.end.set()
            return await asyncio.gather(*requests)

    with serve(app) as port:
        answers = asyncio.run(asyncio.wait_for(crowd(port), 60))
        assert waiting(port) == 0
    refused = [answer for answer in answers if answer.status_code == 503]
    assert len(refused) == 197
    assert {answer.status_code for answer in answers} == {200, 503}
    assert {answer.headers["retry-after"] for answer in refused} == {"5"}
    assert refused[0].json()["error"] == "3 requests are waiting already; try again in 5 seconds"
    assert slow.begun == 3


def chunked(size: int, count: int) -> list[bytes]:
    return [b"%x\r\n%b\r\n" % (size, b" " * size)] * count


@pytest.mark.parametrize("length", ["", "Content-Length: 10\r\n"])
def test_a_body_is_counted_as_it_arrives(app, length):
    """Whatever its headers say; at most what fits into buffers is taken beyond the limit."""
    with serve(app) as port, connect(port) as client:
        client.sendall(request(b"", framing=f"{length}Transfer-Encoding: chunked\r\n"))
        sent = 0
        with contextlib.suppress(ConnectionError):
            for chunk in chunked(50_000, 1000):
                client.sendall(chunk)
                sent += len(chunk)
        assert sent < 25_000_000, "the server went on reading"
        assert waiting(port) == 0


def test_a_body_that_is_too_large_is_answered_with_413(app):
    for framing, body in (
        ("Transfer-Encoding: chunked\r\n", chunked(5001, 1)[0]),
        ("Content-Length: 10\r\nTransfer-Encoding: chunked\r\n", chunked(5001, 1)[0]),
        ("Content-Length: 5001\r\n", b""),
        ("Content-Length: 99999999999999999999\r\n", b""),
    ):
        with serve(app) as port, connect(port) as client:
            client.sendall(request(body, framing=framing))
            answer = b"".join(iter(lambda client=client: client.recv(10_000), b""))
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert b"at most 5,000 are accepted" in answer
            assert b"connection: close" in answer.lower()
            assert b"content-security-policy" in answer.lower()


def test_a_chunked_body_within_the_limit_is_accepted(app):
    def chunks():
        yield from (json.dumps(PAIR).encode()[i : i + 10] for i in range(0, 100, 10))

    with serve(app) as port:
        headers = {"content-type": "application/json"}
        answer = httpx.post(f"http://127.0.0.1:{port}/api/explain", content=chunks(), headers=headers)
    assert answer.status_code == 200, answer.text


def test_bodies_that_do_not_arrive_or_arrive_all_at_once_are_refused(explainer):
    limits = Limits(body_bytes=5000, total_bytes=8000, body_seconds=0.5)
    announced = request(b"", framing="Content-Length: 4500\r\n") + b" " * 4400
    with serve(create_app([explainer], limits)) as port, connect(port) as first, connect(port) as second:
        first.sendall(announced)
        second.sendall(announced)
        answers = sorted(client.recv(10_000)[:12] for client in (first, second))
        assert answers == [b"HTTP/1.1 408", b"HTTP/1.1 503"]
        # What they held is free again.
        assert httpx.post(f"http://127.0.0.1:{port}/api/explain", json=PAIR).status_code == 200


def test_a_client_that_leaves_amid_its_body_is_forgotten(app):
    with serve(app) as port:
        with connect(port) as client:
            client.sendall(request(b"{", framing="Content-Length: 100\r\n"))
        assert httpx.post(f"http://127.0.0.1:{port}/api/explain", json=PAIR).status_code == 200


@pytest.mark.parametrize("accept", ["application/json", STREAM])
def test_a_client_that_never_reads_holds_no_slot(app, explainer, monkeypatch, accept):
    monkeypatch.setattr(type(explainer), "explain", lambda *_, **__: None)
    monkeypatch.setattr("whymatch.web.server.payload", lambda _: {"text": "x" * 20_000_000})
    with serve(app) as port:
        clients = [connect(port) for _ in range(3)]
        for client in clients:
            client.sendall(request(json.dumps(PAIR).encode(), accept))
            assert client.recv(1)
        until(lambda: waiting(port) == 0)
        for client in clients:
            client.close()


def test_a_failure_of_the_server_is_an_answer(app, explainer, monkeypatch, caplog):
    def fail(*_args, **_kwargs):
        raise RuntimeError("secret")

    monkeypatch.setattr(type(explainer), "explain", fail)
    plain = ask(app, "POST", "/api/explain", json=PAIR)
    assert (plain.status_code, plain.json()["error"]) == (500, "the server failed; its log says why")
    lines = ask(app, "POST", "/api/explain", json=PAIR, headers={"accept": STREAM}).text.splitlines()
    assert json.loads(lines[-1]) == plain.json()
    assert "secret" in caplog.text
