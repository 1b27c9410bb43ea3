"""Build the wheel, install it without extras into a fresh environment, and use it there.

    python tests/clean_install.py

Not part of the suite: it installs torch again, which takes a minute or two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import zoo

ROOT = Path(__file__).parents[1]
PAIR = ("The coffee is not good.", "This is bad coffee.")

# What needs an extra, and which one its message must name.
EXTRAS = {
    "plot": ["explain", *PAIR, "--png", "why.png"],
    "corpus": ["batch", "pairs.csv", "out"],
    "web": ["serve"],
}
NOT_INSTALLED = ("matplotlib", "pyarrow", "fastapi", "datasets", "accelerate", "ray")


def run(*command: object, folder: Path, code: int = 0) -> str:
    ended = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
    output = ended.stdout + ended.stderr
    assert ended.returncode == code, f"{' '.join(map(str, command))} ended with {ended.returncode}:\n{output}"
    return output


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = zoo.build(folder / "tiny")
        (folder / "pairs.csv").write_text("text_a,text_b\ncoffee,bread\n")
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
        (wheel,) = folder.glob("whymatch-*.whl")
        run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
        python, command = folder / "venv/bin/python", folder / "venv/bin/whymatch"
        constraints = ROOT / "constraints.txt"
        run(python, "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel, folder=folder)
        here = f"import importlib.util as u; print([n for n in {NOT_INSTALLED} if u.find_spec(n)])"
        assert run(python, "-c", here, folder=folder).strip() == "[]"

        print(run(command, "explain", *PAIR, "--model", model, "--words", folder=folder))
        options = ["--model", model, "--layer", "-1", "--html", "why.html", "--json", "why.json", "--quiet"]
        run(command, "explain", *PAIR, *options, folder=folder)
        why = json.loads((folder / "why.json").read_text())
        assert abs(sum(map(sum, why["matrix"])) - why["score"]) < 1e-3
        assert "<html" in (folder / "why.html").read_text()
        (folder / "documents.txt").write_text("bad coffee\ngood bread\n")
        assert "bad coffee" in run(command, "rank", "coffee", "documents.txt", "--model", model, folder=folder)

        for extra, arguments in EXTRAS.items():
            output = run(command, *arguments, "--model", model, folder=folder, code=2)
            assert f"pip install 'whymatch[{extra}]'" in output, f"{extra}: {output}"
    print("a clean install explains, writes a page and names the extras that are missing")


if __name__ == "__main__":
    main()
