"""Services that embed texts, asked over a real connection to loopback."""

from __future__ import annotations

import json
import ssl
import threading
import time

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the web extra is not installed")
pytest.importorskip("uvicorn", reason="the web extra is not installed")

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

import whymatch.encoders.endpoints
from conftest import read_rows, serve
from whymatch import Explainer, endpoint
from whymatch.corpus import Index
from whymatch.encoders import retries
from whymatch.encoders.endpoints import Endpoint
from whymatch.encoders.retries import ServiceError

PAIR = ("The coffee is not good.", "This is bad coffee.")
KEY = "sk-very-secret"


class Server:
    """A service in OpenAI's format around a real model. A list of faults is worked off, one for each request."""

    def __init__(self, model):
        self.model, self.faults, self.requests, self.headers = model, [], [], []
        self.app = FastAPI()
        self.app.post("/v1/embeddings")(self.embeddings)

    async def embeddings(self, request: Request):
        body = json.loads(await request.body())
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        fault = self.faults.pop(0) if self.faults else None
        if callable(fault):
            answer = fault(body)
            if answer is not None:
                return answer
        if any(not text for text in body["input"]):
            return JSONResponse({"error": {"message": "input cannot be an empty string"}}, 400)
        vectors = self.model.encode(body["input"]).tolist()
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        return JSONResponse({"object": "list", "data": data[::-1], "model": body.get("model")})  # in any order


def status(code, headers=None, text="no"):
    return lambda _: Response(text, code, headers)


@pytest.fixture(scope="module")
def server(folders):
    from sentence_transformers import SentenceTransformer

    service = Server(SentenceTransformer(str(folders("bert")), device="cpu"))
    with serve(service.app) as port:
        service.url = f"http://127.0.0.1:{port}/v1"
        yield service


@pytest.fixture(autouse=True)
def fresh(server, monkeypatch):
    """No fault is left over, and nobody waits."""
    server.faults.clear(), server.requests.clear(), server.headers.clear()
    waits = []
    monkeypatch.setattr(retries, "_sleep", waits.append)
    monkeypatch.setenv("SOME_KEY", KEY)
    return waits


def test_a_service_is_explained_as_its_model_is(server, tmp_path):
    explainer = Explainer(endpoint(server.url, model="tiny", key_env="SOME_KEY", batch_size=10))
    why = explainer.explain(*PAIR)
    here = Explainer(server.model, method="shapley").explain(*PAIR)
    np.testing.assert_allclose(why.matrix, here.matrix, atol=1e-6)
    assert why.error < 1e-9
    assert why.model == f"tiny at {server.url}"
    assert {request["model"] for request in server.requests} == {"tiny"}
    assert max(len(request["input"]) for request in server.requests) == 10
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    assert explainer.usage.texts == sum(len(request["input"]) for request in server.requests)
    # The key is in nothing that is kept or shown.
    why.save(tmp_path / "why.json")
    Index.build(PAIR, tmp_path / "index", explainer)
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    shown = [repr(explainer), repr(explainer.model), repr(why), why.to_html(), str(explainer.settings)]
    assert not any(KEY.encode() in content for content in kept)
    assert not any(KEY in text for text in shown)
    hits = Index.open(tmp_path / "index", model=explainer.model).search("bad coffee")
    assert len(hits) == 2


def test_what_is_sent_to_this_machine_stays_on_it(server, monkeypatch):
    """A proxy, which the environment names for plain http, would be given texts and key unencrypted."""
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert endpoint(server.url, key_env="SOME_KEY")(["coffee"]).shape == (1, 16)
    assert len(server.requests) == 1


@pytest.mark.parametrize("key", ["sk-very\nsecret", "sk-very…secret"])
def test_what_cannot_be_a_key_is_not_repeated(server, monkeypatch, key):
    monkeypatch.setenv("SOME_KEY", key)
    with pytest.raises(ValueError, match=r"key_env='SOME_KEY': that .* cannot be a key") as error:
        endpoint(server.url, key_env="SOME_KEY")
    assert "very" not in str(error.value)


def test_an_index_does_not_decide_where_texts_are_sent(server, tmp_path):
    Index.build(["coffee"], tmp_path / "index", Explainer(endpoint(server.url, model="tiny")))
    server.requests.clear()
    with pytest.raises(ValueError, match="say which model to use"):
        Index.open(tmp_path / "index")
    assert not server.requests


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_a_busy_service_is_asked_again(server, fresh, code):
    server.faults += [status(code, {"Retry-After": "3"}), status(code)]
    vectors = endpoint(server.url)(["coffee"])
    assert vectors.shape == (1, 16)
    assert fresh[0] == 3
    assert fresh[1] < 2
    assert len(server.requests) == 3
    server.faults += [status(code)] * 9
    with pytest.raises(ServiceError, match=rf"answers {code} .*: 'no', 5 times"):
        endpoint(server.url)(["coffee"])
    assert len(server.requests) == 8
    server.faults.clear()
    server.faults += [status(code)] * 5
    explainer = Explainer(endpoint(server.url))
    with pytest.raises(ServiceError, match=rf"answers {code} .*: 'no', 5 times"):
        explainer.explain("coffee", "tea")
    assert len(server.requests) == 13  # not five times five
    server.faults.clear()
    server.faults += [status(code)]
    explainer.explain("coffee", "tea")
    # Whatever was sent may cost money, whether it was answered or not.
    sent = [text for request in server.requests[8:] for text in request["input"]]
    assert explainer.usage.calls == len(server.requests[8:])
    assert explainer.usage.texts == len(sent)


def test_retry_after_may_be_a_date():
    import datetime
    from email.utils import format_datetime

    then = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=20)
    assert 17 < whymatch.encoders.endpoints._seconds(format_datetime(then, usegmt=True)) <= 20
    assert whymatch.encoders.endpoints._seconds("soon") is None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (status(401, text=f"Incorrect key {KEY}"), r"answers 401 Unauthorized: 'Incorrect key …'; check the key"),
        (status(404), "answers 404 Not Found: 'no'; check the address, which usually ends in /v1"),
        (status(413), "give a smaller batch_size="),
        (status(307, {"Location": "http://example.org/v1"}), "it has moved to 'http://example.org/v1'; name that"),
        (status(200, text="<html>"), "does not answer in OpenAI's format .*: '<html>'"),
        (status(200, text='{"data": [{"index": 0}]}'), r"does not answer in OpenAI's format \(KeyError\)"),
        (status(200, text=f"{'x' * 190} {KEY}"), r"does not answer in OpenAI's format .*x …'"),
        (status(200, text='{"data": []}'), "gives 0 vectors for 1 texts"),
        (status(200, text='{"data": [{"index": 4, "embedding": [1]}]}'), "or does not say whose they are"),
        (status(200, text='{"data": [{"index": 0, "embedding": ["a"]}]}'), "vectors that are not numbers"),
    ],
)
def test_other_answers_are_errors(server, fault, message):
    server.faults.append(fault)
    with pytest.raises(ServiceError, match=message) as error:
        endpoint(server.url, key_env="SOME_KEY")(["coffee"])
    assert len(server.requests) == 1
    assert KEY not in str(error.value)


def test_a_service_that_refuses_the_format_is_asked_without(server):
    """As LiteLLM does for some providers: floats are what they give anyway."""
    refusal = "UnsupportedParamsError: voyage does not support parameters: {'encoding_format': 'float'}"
    client = endpoint(server.url, batch_size=1)
    server.faults.append(status(400, text=refusal))
    assert client(["coffee", "tea"]).shape == (2, 16)
    assert ["encoding_format" in request for request in server.requests] == [True, False, False]
    server.faults.append(status(400, text=refusal))
    with pytest.raises(ServiceError, match="voyage does not support"):
        client(["coffee"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"data": [{"index": 0, "embedding": [NaN' + ", 1" * 15 + "]}]}",
            "numbers that are not finite for 'tea'",
        ),
        ('{"data": [{"index": 0, "embedding": [1, 2]}]}', "vectors of 16 dimensions before, and now of 2"),
    ],
)
def test_vectors_that_cannot_be_right_are_refused(server, text, message):
    explainer = Explainer(endpoint(server.url))
    explainer.rank("coffee", ["bread"])
    server.faults.append(status(200, text=text))
    with pytest.raises(ValueError, match=message):
        explainer.rank("coffee", ["tea"])


def test_a_connection_that_is_cut_or_slow_is_tried_again():
    """By a server of its own, which hangs up, then says half of what it announced, then nothing, then all."""
    import socket

    answer = b'{"data": [{"index": 0, "embedding": [1.0, 2.0]}]}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer)
    turns = [b"", head + answer[:20], None, head + answer]
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run():
            for turn in turns:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(2**16)
                    if turn is None:
                        time.sleep(1.5)
                    else:
                        connection.sendall(turn)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        # A busy machine takes a while to answer at all.
        client = endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=1)
        np.testing.assert_array_equal(client(["coffee"]), [[1.0, 2.0]])
        thread.join(5)
    with pytest.raises(ServiceError, match=r"cannot be reached .*, 5 times"):
        client(["coffee"])  # nobody listens any more


def test_certificates_are_checked(tmp_path):
    """A server whose certificate nobody vouches for is not talked to."""
    import shutil
    import socket
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
        *files,
    ]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run():
            connection, _ = listener.accept()
            with connection, pytest.raises((ssl.SSLError, OSError)):
                context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        with pytest.raises(ServiceError, match=r"the certificate of .* is not valid: self"):
            endpoint(f"https://127.0.0.1:{listener.getsockname()[1]}")(["coffee"])
        thread.join(5)


def test_addresses_are_checked(monkeypatch):
    assert endpoint("https://host/v1/").url == "https://host/v1/embeddings"
    assert endpoint("https://host/v1/embeddings?api-version=1").url == "https://host/v1/embeddings?api-version=1"
    assert endpoint("https://host/v1?secret=1", model="m").name == "m at https://host/v1"
    for here in ("http://localhost:8080/v1", "http://[::1]/v1", "http://127.0.0.2"):
        endpoint(here)
    with pytest.raises(ValueError, match=r"'http://host/v1' is not encrypted.*allow_http=True"):
        endpoint("http://host/v1")
    assert endpoint("http://host/v1", allow_http=True).url.startswith("http://host")
    for wrong in ("host/v1", "ftp://host", "", "https://"):
        with pytest.raises(ValueError, match="is not the address of a service"):
            endpoint(wrong)
    with pytest.raises(ValueError, match="name a key_env= instead"):
        endpoint("https://me:secret@host/v1")
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(ValueError, match="key_env='SOME_KEY': there is no such environment variable"):
        endpoint("https://host/v1", key_env="SOME_KEY")
    with pytest.raises(ValueError, match="batch_size=0"):
        endpoint("https://host/v1", batch_size=0)


def test_a_batch_is_explained_by_a_service(server, whymatch, tmp_path, monkeypatch):
    import io
    import sys

    options = ("--endpoint", server.url, "--model", "tiny", "--key-env", "SOME_KEY")
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(f"text_a,text_b\nbad coffee,{PAIR[0]}\nbad coffee,\nbad coffee,{PAIR[1]}\n")
    out, err = whymatch("batch", str(pairs), str(tmp_path / "out"), *options, model=False)
    assert "written: 2 rows" in out
    assert "1 bad rows" in out
    assert "will embed 100 texts or fewer" in err  # 4 + 64 + 32: each text once
    assert "embedded in" in err
    here = Explainer(server.model, method="shapley").explain("bad coffee", PAIR[1])
    (row,) = [row for row in read_rows(tmp_path / "out") if row["text_b"] == PAIR[1]]
    np.testing.assert_allclose(np.array(row["matrix"]), here.matrix, atol=1e-5)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pairs.read_bytes())))
    out, _ = whymatch("batch", "-", str(tmp_path / "out"), *options, "--resume", model=False)  # the same job
    assert "written: 2 rows" in out
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in content for content in kept)
    _, err = whymatch("batch", str(pairs), str(tmp_path / "o"), *options, "--engine", "ray", code=2, model=False)
    assert "--endpoint is for --engine local" in err


def test_the_explorer_asks_a_service(server, whymatch, monkeypatch):
    """It is served as any model is; what the service answers instead of vectors reaches the page as a sentence."""
    from starlette.testclient import TestClient

    import whymatch.web.server as module

    served = []
    monkeypatch.setattr(module, "run", lambda app, *_: served.append(app))
    _, err = whymatch("serve", "--port", "0", "--endpoint", server.url, "--model", "tiny", model=False)
    assert f"tiny at {server.url} will embed 1,024 texts or fewer for each text" in err
    client = TestClient(served[0], base_url="http://127.0.0.1")
    (model,) = client.get("/api/models").json()
    assert (model["layers"], model["path"]) == (0, "shapley")
    body = {"text_a": PAIR[0], "text_b": PAIR[1]}
    answer = client.post("/api/explain", json=body).json()
    assert answer["score"] == pytest.approx(Explainer(server.model).explain(*PAIR).score, abs=1e-5)
    ranking = client.post("/api/rank", json={"query": "bad coffee", "documents": list(PAIR)}).json()
    assert len(ranking["hits"]) == 2
    server.faults.append(status(401))
    failed = client.post("/api/explain", json={"text_a": "bread", "text_b": "tea"})
    assert failed.status_code == 502
    assert "answers 401 Unauthorized: 'no'; check the key" in failed.json()["error"]


def test_another_model_behind_the_same_address_is_noticed(server, load, tmp_path, monkeypatch):
    """Its name is the same, and so only its vectors can say that it is another."""
    folder = tmp_path / "index"
    service = endpoint(server.url, model="tiny")
    Index.build(PAIR, folder, Explainer(service)).add(["bread"])
    monkeypatch.setattr(server, "model", load("mpnet"))
    for again in (
        lambda: Index.open(folder, model=service),
        lambda: Index.build(PAIR, folder, Explainer(service), resume=True),
    ):
        with pytest.raises(ValueError, match=r"by another encoder: .tiny at .* gives .The coffee .* cosine is"):
            again()


def test_the_command_line(server, whymatch, tmp_path):
    options = ("--endpoint", server.url, "--model", "tiny", "--key-env", "SOME_KEY")
    out, err = whymatch("explain", *PAIR, *options, "--json", str(tmp_path / "why.json"), model=False)
    assert f"tiny at {server.url} will embed 96 texts or fewer" in err
    assert "texts (" in err
    assert "characters) embedded in" in err
    assert "Shapley values" in out
    assert "entries exact" in out
    assert KEY not in out + err + (tmp_path / "why.json").read_text()
    (tmp_path / "documents.txt").write_text("\n".join(PAIR))
    out, err = whymatch("rank", "bad coffee", str(tmp_path / "documents.txt"), *options, model=False)
    assert "bad coffee" in out
    assert "or fewer" in err
    index = str(tmp_path / "index")
    out, err = whymatch("index", "build", str(tmp_path / "documents.txt"), index, *options, model=False)
    assert "2 documents" in out
    assert "will embed 2 texts or fewer" in err
    stored = (str(tmp_path / "stored"), "--store", "tokens")
    _, err = whymatch("index", "build", str(tmp_path / "documents.txt"), *stored, *options, model=False)
    assert "will embed 96 texts or fewer" in err
    out, err = whymatch("highlight", "bad coffee", str(tmp_path / "documents.txt"), *options, model=False)
    assert "coffee" in out
    assert "or fewer" in err
    out, _ = whymatch("index", "search", "bad coffee", index, *options, model=False)
    assert "bad coffee" in out
    out, err = whymatch("explain", *PAIR, "--method", "shapley", "--mask", "…")
    assert "words replaced by" in " ".join(out.split())
    assert "will embed 96 texts or fewer" in err
    (tmp_path / "more.txt").write_text("A man is slicing bread.")
    _, err = whymatch("index", "add", str(tmp_path / "more.txt"), index, *options, model=False)
    assert "will embed 1 texts or fewer" in err
    assert "2 texts (" in err  # the text that was added, and one of the index, whose vector must be the same as ever
    _, err = whymatch("index", "search", "bad coffee", index, *options, "--top", "1", model=False)
    assert "will embed 68 texts or fewer" in err  # 4 for the query and 64 for a document of six words
    _, err = whymatch("explain", *PAIR, "--key-env", "SOME_KEY", code=2)
    assert "--key-env and --allow-http are for --endpoint" in err
    _, err = whymatch("explain", *PAIR, "--endpoint", "http://host/v1", code=2)
    assert "is not encrypted" in err


@pytest.mark.parametrize(("fault", "code"), [(status(401), 2), (KeyboardInterrupt(), 130)])
def test_what_was_spent_is_said_when_a_command_fails_or_is_stopped(server, whymatch, monkeypatch, fault, code):
    ask = Endpoint.request

    def request(self, texts):
        if len(server.requests) == 1:
            if isinstance(fault, KeyboardInterrupt):
                raise fault
            server.faults.append(fault)
        return ask(self, texts)

    monkeypatch.setattr(Endpoint, "request", request)
    _, err = whymatch("explain", *PAIR, "--endpoint", server.url, "--model", "tiny", code=code, model=False)
    assert "embedded in 2 calls" in err
    assert ("answers 401" in err) == (code == 2)
