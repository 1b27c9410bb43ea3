"""The examples of docs/search.md and docs/integrations.md are run, each with the real library that it is about."""

from __future__ import annotations

import io
import json
import re
import shlex
import sqlite3
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page, language="python"):
    """The blocks of code on a page, each with the heading that it stands under."""
    found, heading = [], ""
    for title, code in re.findall(rf"^## ([^\n]*)$|^```{language}\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S):
        heading = title or heading
        if code:
            found.append((heading, code))
    return found


def test_the_python_of_the_page_for_people_who_search(minilm):  # noqa: ARG001 it skips where there is none
    names: dict = {}
    for _, code in blocks("search.md"):
        exec(code, names)
    ranking, contrast, why = names["ranking"], names["contrast"], names["why"]
    assert ranking[0].id == "7"
    assert contrast.difference == pytest.approx(ranking[0].score - ranking[1].score, abs=1e-6)
    assert sum(share.value for share in contrast.by_query_word) == pytest.approx(contrast.difference, abs=1e-3)
    assert sum(span["score"] for span in names["highlights"].to_list()) == pytest.approx(why.score, abs=1e-3)
    sentence = why.highlights(unit="sentences")[0]
    assert sum(span.score for span in why.zoom(0)) == pytest.approx(sentence.score, abs=1e-3)


def test_the_commands_of_the_page_for_people_who_search(whymatch, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    articles = tmp_path / "articles.jsonl"
    texts = ("We pay refunds to your card.", "You can pay with money.", "Our shops are open.")
    articles.write_text("".join(json.dumps({"id": str(i), "text": text}) + "\n" for i, text in enumerate(texts)))
    lines = [line for _, code in blocks("search.md", "sh") for line in code.splitlines()]
    commands = [line for line in lines if "whymatch " in line]
    assert len(commands) == 2
    for line in commands:
        before, _, arguments = line.partition("whymatch ")
        if "|" in before:
            assert before == "cat articles.jsonl | "
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(articles.read_bytes())))
        out, _ = whymatch(*shlex.split(arguments))
        assert "decided by" in out or len(json.loads(out)["hits"]) == 3
    requests = [shlex.split(line) for line in lines if line.startswith("curl ")]
    assert len(requests) == 2
    pytest.importorskip("fastapi", reason="the web extra is not installed")
    from starlette.testclient import TestClient

    from whymatch import Explainer
    from whymatch.web.server import create_app

    client = TestClient(create_app([Explainer(str(folder))]), base_url="http://localhost:8000")
    for _, _, address, _, header, _, body in requests:
        kind, _, value = header.partition(": ")
        answer = client.post(f"http://{address}", content=body.encode(), headers={kind: value})
        assert answer.status_code == 200, answer.text
        assert "difference" in answer.json() or answer.json()["highlights"]


LIBRARIES = {
    "LangChain": "langchain_core",
    "LlamaIndex": "llama_index.core",
    "Haystack": "haystack",
    "Qdrant": "qdrant_client",
    "Chroma": "chromadb",
    "LanceDB": "lancedb",
    "sqlite-vec": "sqlite_vec",
    "FAISS": "faiss",
}


def test_every_adapter_has_an_example():
    modules = {path.stem for path in (DOCS.parent / "src/whymatch/integrations").glob("*.py")} - {"__init__", "found"}
    (_, _), *examples = blocks("integrations.md")
    assert [heading for heading, _ in examples] == list(LIBRARIES)
    assert {each.lower().replace("-", "_") for each in LIBRARIES} == modules


@pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not this test's matter
@pytest.mark.parametrize("heading", LIBRARIES)
def test_the_example_of_an_adapter(heading, minilm, tmp_path, monkeypatch, capsys):  # noqa: ARG001
    pytest.importorskip(LIBRARIES[heading], reason=f"the library of {heading} is not installed")
    if heading == "sqlite-vec" and not hasattr(sqlite3.connect(":memory:"), "enable_load_extension"):
        reason = "this Python's SQLite loads no extensions, and pysqlite3, which does, is not installed"
        monkeypatch.setitem(sys.modules, "sqlite3", pytest.importorskip("pysqlite3", reason=reason))
    monkeypatch.chdir(tmp_path)
    (_, start), *examples = blocks("integrations.md")
    names: dict = {}
    exec(start, names)
    exec(dict(examples)[heading], names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert any(text in line for text in names["texts"])
        assert re.search(r"\[\{'start': 0, 'end': \d+, 'score': -?\d", line)
