"""Adapters, each against the real library, offline; those whose library is not installed are skipped."""

from __future__ import annotations

import importlib
import sqlite3
import struct

import numpy as np
import pytest
import zoo

from whymatch import Explainer
from whymatch.integrations.found import Reader

pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is not these tests' matter

QUERY = "bad coffee"
DOCUMENTS = [
    {"id": 1, "text": "The coffee is not good.", "page": 3},
    {"id": 2, "text": "A man is slicing bread.", "page": 4},
    {"id": 3, "text": "Two dogs run across the snowy field.", "page": 5},
]
TEXTS = [document["text"] for document in DOCUMENTS]


@pytest.fixture(scope="module", params=["plain", "prompted"])
def explainer(request, tmp_path_factory):
    """A model without prompts, and one with prompts for queries and documents."""
    folder = tmp_path_factory.mktemp(request.param)
    return Explainer(str(zoo.prompted(folder) if request.param == "prompted" else zoo.build(folder)), layer=1)


@pytest.fixture
def vectors(explainer):
    return np.asarray(explainer.model.encode_document(TEXTS), np.float32)


def own_scores(explainer):
    model = explainer.model
    return model.similarity(model.encode_query(QUERY), model.encode_document(TEXTS))[0].tolist()


def check_highlights(explainer, text, highlights):
    """They are those of the explainer, in the one shape, and sum to the model's own score."""
    assert all(set(span) == {"start", "end", "score"} for span in highlights)
    expected = explainer.highlight(QUERY, text)
    assert [(span["start"], span["end"]) for span in highlights] == [span[:2] for span in expected]
    assert sum(span["score"] for span in highlights) == pytest.approx(
        own_scores(explainer)[TEXTS.index(text)], abs=1e-3
    )
    assert text[highlights[1]["start"] : highlights[1]["end"]] == text.split()[1]


def check_hits(explainer, hits, metadata=True):
    own = own_scores(explainer)
    assert [hit.text for hit in hits] == [TEXTS[i] for i in np.argsort(own)[::-1]]
    for hit in hits:
        number = TEXTS.index(hit.text)
        assert str(hit.id) == str(DOCUMENTS[number]["id"])
        assert hit.score == pytest.approx(own[number], abs=1e-5)
        check_highlights(explainer, hit.text, hit.highlights)
        if metadata:
            assert hit.metadata["page"] == DOCUMENTS[number]["page"]


# --- stores: each returns a function that searches it


def qdrant_store(vectors, _folder):
    client_of = pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")
    from qdrant_client import models

    from whymatch.integrations import qdrant

    client = client_of.QdrantClient(":memory:")
    size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
    client.create_collection("articles", vectors_config=size)
    points = [
        models.PointStruct(id=document["id"], vector=vector.tolist(), payload=document)
        for document, vector in zip(DOCUMENTS, vectors, strict=True)
    ]
    client.upsert("articles", points)
    return lambda explainer, **options: qdrant.search(client, "articles", QUERY, explainer, **options)


def chroma_store(vectors, _folder):
    chromadb = pytest.importorskip("chromadb", reason="the extra chroma is not installed")
    from whymatch.integrations import chroma

    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False, allow_reset=True))
    client.reset()
    collection = client.create_collection("articles", configuration={"hnsw": {"space": "cosine"}})
    collection.add(
        ids=[str(document["id"]) for document in DOCUMENTS],
        documents=TEXTS,
        metadatas=[{"page": document["page"]} for document in DOCUMENTS],
        embeddings=vectors.tolist(),
    )

    def search(explainer, limit=3, **options):
        return chroma.search(collection, QUERY, explainer, limit=limit, **options)

    return search


def lancedb_store(vectors, folder):
    database = pytest.importorskip("lancedb", reason="the extra lancedb is not installed").connect(str(folder))
    from whymatch.integrations import lancedb

    rows = [{**document, "vector": vector} for document, vector in zip(DOCUMENTS, vectors.tolist(), strict=True)]
    table = database.create_table("articles", rows)
    return lambda explainer, **options: lancedb.search(table, QUERY, explainer, **options)


def sqlite_store(vectors, _folder):
    extension = pytest.importorskip("sqlite_vec", reason="the extra sqlite-vec is not installed")
    from whymatch.integrations import sqlite_vec

    connection = sqlite3.connect(":memory:")
    if not hasattr(connection, "enable_load_extension"):
        reason = "this Python's SQLite loads no extensions, and pysqlite3, which does, is not installed"
        connection = pytest.importorskip("pysqlite3", reason=reason).connect(":memory:")
    connection.enable_load_extension(True)
    extension.load(connection)
    size = vectors.shape[1]
    connection.execute(f"create virtual table vectors using vec0(embedding float[{size}] distance_metric=cosine)")
    connection.execute('create table documents(id integer primary key, text text, "page" integer)')
    for document, vector in zip(DOCUMENTS, vectors, strict=True):
        connection.execute("insert into documents values (?, ?, ?)", tuple(document.values()))
        packed = struct.pack(f"{size}f", *vector)
        connection.execute("insert into vectors(rowid, embedding) values (?, ?)", (document["id"], packed))
    return lambda explainer, **options: sqlite_vec.search(connection, QUERY, explainer, **options)


def faiss_store(vectors, _folder):
    library = pytest.importorskip("faiss", reason="the extra faiss is not installed")
    from whymatch.integrations import faiss

    index = library.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return lambda explainer, **options: faiss.search(index, DOCUMENTS, QUERY, explainer, **options)


STORES = [qdrant_store, chroma_store, lancedb_store, sqlite_store, faiss_store]


@pytest.mark.parametrize("store", STORES)
def test_hits_of_a_store_are_explained(store, explainer, vectors, tmp_path):
    search = store(vectors, tmp_path)
    check_hits(explainer, search(explainer))
    (first,) = search(explainer, limit=1, unit="sentences", top=1)
    assert [(span["start"], span["end"]) for span in first.highlights] == [(0, len(first.text))]


@pytest.mark.parametrize("store", STORES)
def test_vectors_of_another_encoder_are_refused(store, explainer, vectors, tmp_path):
    other = np.random.default_rng(0).standard_normal(vectors.shape).astype(np.float32)
    search = store(other / np.linalg.norm(other, axis=1, keepdims=True), tmp_path)
    with pytest.raises(ValueError, match=r"the stored vector of '.*' is not what .* gives this text \(their cosine is"):
        search(explainer)
    assert len(search(explainer, check=False)) == 3


# --- libraries that hand documents on


def test_langchain(explainer, vectors):
    pytest.importorskip("langchain_core", reason="the extra langchain is not installed")
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    from whymatch.integrations.langchain import HighlightCompressor

    class Own(Embeddings):
        def embed_documents(self, texts):
            return explainer.model.encode_document(texts).tolist()

        def embed_query(self, text):
            return explainer.model.encode_query(text).tolist()

    store = InMemoryVectorStore(Own())
    store.add_documents([Document(page_content=each["text"], metadata={"page": each["page"]}) for each in DOCUMENTS])
    retriever = store.as_retriever(search_kwargs={"k": 3})
    compressor = HighlightCompressor(explainer=explainer, embeddings=Own())
    found = retriever.invoke(QUERY)
    explained = compressor.compress_documents(found, QUERY)
    assert [document.page_content for document in explained] == [document.page_content for document in found]
    for before, document in zip(found, explained, strict=True):
        assert document.metadata["page"] == before.metadata["page"]
        assert "whymatch" not in before.metadata
        check_highlights(explainer, document.page_content, document.metadata["whymatch"])

    class Another(Own):
        def embed_documents(self, texts):
            return [[1.0] * vectors.shape[1] for _ in texts]

    with pytest.raises(ValueError, match="is not what"):
        HighlightCompressor(explainer=explainer, embeddings=Another()).compress_documents(found, QUERY)


def test_llamaindex(explainer, vectors):
    pytest.importorskip("llama_index.core", reason="the extra llamaindex is not installed")
    from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

    from whymatch.integrations.llamaindex import HighlightPostprocessor

    postprocessor = HighlightPostprocessor(explainer=explainer)
    nodes = [
        NodeWithScore(node=TextNode(text=text, embedding=vector.tolist()), score=0.5)
        for text, vector in zip(TEXTS, vectors, strict=True)
    ]
    for found in postprocessor.postprocess_nodes(nodes, query_str=QUERY):
        check_highlights(explainer, found.node.get_content(), found.node.metadata["whymatch"])
        assert found.node.get_content(MetadataMode.EMBED) == found.node.get_content()  # it is not embedded itself
    wrong = NodeWithScore(node=TextNode(text=TEXTS[0], embedding=vectors[1].tolist()))
    with pytest.raises(ValueError, match="is not what"):
        postprocessor.postprocess_nodes([wrong], query_str=QUERY)
    with pytest.raises(ValueError, match="highlights need the query"):
        postprocessor.postprocess_nodes(nodes)


def test_llamaindex_embeds_metadata_with_the_text(explainer):
    pytest.importorskip("llama_index.core", reason="the extra llamaindex is not installed")
    from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode

    from whymatch.integrations.llamaindex import HighlightPostprocessor

    node = TextNode(text=TEXTS[0], metadata={"author": "nobody"})
    embedded = node.get_content(MetadataMode.EMBED)
    assert embedded != TEXTS[0]
    (found,) = HighlightPostprocessor(explainer=explainer).postprocess_nodes(
        [NodeWithScore(node=node)], query_str=QUERY
    )
    spans = found.node.metadata["whymatch"]
    assert [TEXTS[0][span["start"] : span["end"]] for span in spans[:2]] == ["The", "coffee"]
    expected = explainer.highlight(QUERY, embedded)
    assert sum(span["score"] for span in spans) == pytest.approx(expected.score, abs=1e-3)


def test_haystack(explainer, vectors):
    pytest.importorskip("haystack", reason="the extra haystack is not installed")
    from haystack import Document, Pipeline
    from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    from whymatch.integrations.haystack import Highlighter

    documents = [
        Document(content=each["text"], meta={"page": each["page"]}, embedding=vector.tolist())
        for each, vector in zip(DOCUMENTS, vectors, strict=True)
    ]
    store = InMemoryDocumentStore(embedding_similarity_function="cosine", return_embedding=True)
    store.write_documents(documents)
    pipeline = Pipeline()
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, return_embedding=True))
    pipeline.add_component("highlighter", Highlighter(explainer))
    pipeline.connect("retriever.documents", "highlighter.documents")
    asked = explainer.model.encode_query(QUERY).tolist()
    found = pipeline.run({"retriever": {"query_embedding": asked}, "highlighter": {"query": QUERY}})
    for document in found["highlighter"]["documents"]:
        assert document.meta["page"] == DOCUMENTS[TEXTS.index(document.content)]["page"]
        check_highlights(explainer, document.content, document.meta["whymatch"])
    wrong = Document(content=TEXTS[0], embedding=vectors[1].tolist())
    with pytest.raises(ValueError, match="is not what"):
        Highlighter(explainer).run(query=QUERY, documents=[wrong])


# --- what all of them share


def test_what_is_wrong_with_a_hit_is_named(explainer, vectors):
    from whymatch.integrations.found import text_of

    reader = Reader(explainer)
    with pytest.raises(ValueError, match="it has 3 dimensions, and the encoder's 16"):
        reader.check_vectors(TEXTS[:1], [[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match=r"no vector came with the hit 'The coffee is not good\.'"):
        reader.check_vectors(TEXTS[:1], [None])
    with pytest.raises(ValueError, match="a hit has no text under 'text', but 'body', 'id': say under which name"):
        text_of({"body": "x", "id": 1}, "text")
    with pytest.raises(TypeError, match="a hit has no text, but None"):
        reader.highlight(QUERY, [None])
    reader.check_vectors(TEXTS, vectors.astype(np.float16))


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llamaindex", "llama_index", "llamaindex"),
        ("haystack", "haystack", "haystack"),
    ],
)
def test_without_its_library_an_adapter_names_the_extra(module, library, extra, monkeypatch):
    import builtins
    import sys

    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}")
        return original(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, f"whymatch.integrations.{module}", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"pip install 'whymatch\[{extra}\]'"):
        importlib.import_module(f"whymatch.integrations.{module}")
