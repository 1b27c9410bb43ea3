"""The command that judges explanations: what it reads, runs and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from whymatch.truth import Result
from whymatch.truth.evaluation import Plan, find_files, kind_of

WORDS_FILE = "0:0\tthe bad coffee\tN/A\tcoffee that is bad\tN/A\t1\t1\t1-3 2-0\n1:1\ta b\tN/A\tb\tN/A\t1\t1\t1-0\n"


def test_evaluate(whymatch, tmp_path):
    (tmp_path / "data").mkdir()
    rows = "".join(f"{a},{b}\n" for a, b in [("bad coffee", "The coffee is bad"), ("a dog", "a man runs")])
    (tmp_path / "data" / "stsb-dev.csv").write_text("text_a,text_b\n" + rows)
    (tmp_path / "data" / "mwa.tsv").write_text(WORDS_FILE * 2)
    out = tmp_path / "out"
    args = ("evaluate", "coalitions", "alignment", "--data", str(tmp_path / "data"), "--split", "dev", "--out")
    args = (*args, str(out), "--special", "keep", "--divisions", "0")
    printed, _ = whymatch(*args, "--layer", "2,-1", "--path", "relay", "--pairs", "2", "--method", "whymatch,random")
    assert "6 jobs, 12 pairs to do" in printed
    assert "in all" in printed
    found = [Result.load(path) for path in sorted(out.glob("*.json"))]
    assert {(each.test, each.settings["subject"]) for each in found} == {
        (test, subject) for test in ("coalitions", "alignment") for subject in ("relay 2", "relay 3", "random")
    }
    assert {each.settings["split"] for each in found} == {"dev"}
    assert (out / "report.html").read_text().count("<section>") == 2
    printed, _ = whymatch(*args, "--layer", "2,-1", "--path", "relay", "--pairs", "2", "--method", "whymatch,random")
    assert "to do" not in printed  # everything is known


def test_evaluate_runs_what_the_files_allow(whymatch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("text_a,text_b\ngood coffee,The tea is bad\na dog sleeps,a man runs\n")
    printed, _ = whymatch("evaluate", "--data", "mine.csv", "--method", "token-cosine:-1", "--pairs", "2")
    assert {Result.load(path).test for path in Path("truth").glob("*.json")} == {
        "coalitions",
        "insertion_deletion",
        "sanity",
    }
    assert f"written: {Path('truth') / 'report.html'}" in printed


def test_evaluate_goes_on_in_the_folder_of_its_data(whymatch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine-dev.csv").write_text("text_a,text_b\ngood coffee,The tea is bad\na dog sleeps,a man runs\n")
    Path("package.json").write_text("{}")
    args = ("evaluate", "--data", ".", "--split", "dev", "--method", "token-cosine:-1", "--pairs", "2")
    whymatch(*args)
    Path("truth/notes.json").write_text("[]")  # somebody's own
    printed, _ = whymatch(*args)
    assert "to do" not in printed  # what is in its folder of results is no data, and is not run again


def test_a_folder_whose_files_name_no_split_is_halved(tmp_path):
    (tmp_path / "mine.csv").write_text("text_a,text_b\n" + "a b,c d\n" * 4)
    plan = Plan(["coalitions"], [tmp_path], split="dev")
    assert find_files(plan)["pairs"] == [tmp_path / "mine.csv"]
    (tmp_path / "other-dev.csv").write_text("text_a,text_b\n" + "a b,c d\n" * 4)
    assert find_files(plan)["pairs"] == [tmp_path / "other-dev.csv"]
    with pytest.raises(ValueError, match="split='dve' is not known; choose dev, test, or none"):
        find_files(replace(plan, split="dve"))


def test_word_links_are_known_by_any_of_the_first_lines(tmp_path):
    path = tmp_path / "links.tsv"
    path.write_text("0:0\ta b\tN/A\tc\tN/A\t1\t1\t\n" + WORDS_FILE)
    assert kind_of(path) == "links"


def test_files_of_one_name_have_results_of_their_own(whymatch, tmp_path):
    for folder, text in (("x", "a dog sleeps"), ("y", "the man runs")):
        (tmp_path / folder).mkdir()
        rows = f"{text},bad coffee,good tea\n{text} well,the good tea,bad bread\n"
        (tmp_path / folder / "q.csv").write_text("a,b,c\n" + rows)
    args = ("evaluate", "coalitions", "--method", "word-count", "--pairs", "2", "--out", str(tmp_path / "out"))
    whymatch(*args, "--data", str(tmp_path / "x/q.csv"), "--data", str(tmp_path / "y/q.csv"), "--columns", "a,b")
    whymatch(*args, "--data", str(tmp_path / "x/q.csv"), "--columns", "a,c")
    assert len(list((tmp_path / "out").glob("*.json"))) == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense", "--data", "x.csv", "--out", "out"], "there is no test 'nonsense'; choose coalitions"),
        (["coalitions", "--data", "absent.csv", "--out", "out"], "there is no file 'absent.csv'"),
        (["alignment", "--data", "x.csv", "--out", "out"], "reads word links (MultiMWA's .tsv), and --data names no"),
        (["coalitions", "--data", ".", "--out", "out"], "'.' is a folder: say which of its files, --split dev or test"),
        (["coalitions", "--data", "x.csv", "--out", "out", "--layer", "x"], "--layer 'x' is not a list of numbers"),
        (["all", "--data", "x.csv"], "the test 'alignment' reads word links (MultiMWA's .tsv), and --data names no"),
        (["--data", "empty", "--split", "dev"], "there is nothing that a test can read in 'empty'; give pairs of"),
        (["coalitions", "--data", "x.csv", "--out", "out", "--method", "magic"], "there is no baseline 'magic'"),
        (["coalitions", "--data", "x.txt", "--out", "out"], "'x.txt' is not a file that a test can read"),
        (["coalitions", "--data", "x.csv", "--out", "out", "--max-words", "1"], "no pair whose texts have 1 words"),
        (["coalitions", "--data", "x.csv", "--out", "out", "--split", "dev"], "'x.csv' has no pair in its half for"),
        (
            ["coalitions", "--data", "x.csv", "--out", "out", "--columns", "text_a,c"],
            "'x.csv' has no column 'c'; it has",
        ),
        (["coalitions", "--data", "x.csv", "--out", "out", "--reference", "zero"], "--reference 'zero' is neither pad"),
        (["coalitions", "--data", "x.csv", "--out", "out", "--method", "token-cosine:99"], "layer 99 is out of range"),
        (
            ["coalitions", "--data", "x.csv", "--out", "out", "--method", "shapley:4:2"],
            "'shapley:4:2': '4:2' cannot be",
        ),
        (["coalitions", "--data", "x.csv", "--out", "out", "--method", "retrivex:x"], "write retrivex:3:50"),
        (
            ["coalitions", "--data", "x.csv", "--out", "out", "--method", "unfolded", "--path", "relay"],
            "unfolded is the paper's form, whose path is straight, not relay",
        ),
        (["--quick", "--data", "."], "--data '.' is a folder; --quick reads files of pairs"),
        (["--quick", "--data", "x.json"], "--data 'x.json' is not a table of pairs; --quick reads pairs of texts (CSV"),
        (["--quick", "--data", "y.csv"], "none of these pairs tells anything: a text needs two words"),
        (["--quick", "--data", "x.csv", "--layer", "1"], "--quick chooses its tests and settings itself, and writes"),
        (["answers", "--data", "x.json", "--out", "out"], "'x.json' is not in the format of SQuAD, where data have"),
        (["coalitions", "--data", "y.csv", "--out", "out"], "there is no value for coalitions, "),
    ],
)
def test_evaluate_refuses(whymatch, tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("text_a,text_b\nbad coffee,the coffee\n")
    Path("x.txt").write_text("bad coffee\n")
    Path("x.json").write_text("{}")
    Path("y.csv").write_text("text_a,text_b\ncoffee,coffee\ntea,tea\n")
    Path("empty").mkdir()
    _, err = whymatch("evaluate", *args, code=2)
    assert message in err


def test_evaluate_quick_prints_flags(whymatch, tmp_path):
    (tmp_path / "mine.csv").write_text("text_a,text_b\nbad coffee,The coffee is bad\na dog runs,a man runs\n")
    printed, _ = whymatch("evaluate", "--quick", "--data", str(tmp_path / "mine.csv"))
    assert "token cosine 3: " in printed
    assert "\nuse: " in printed
    assert "\nin Python: Explainer(" in printed
