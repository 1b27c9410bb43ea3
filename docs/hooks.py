"""Pages of the site that are made of other files: the commands, the changelog, and the notebooks with their outputs."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Cells with these tags are for the machine that runs the notebook, and not for a reader.
HIDDEN = "hidden"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are generated, and the pictures of the notebooks."""
    from mkdocs.structure.files import File

    def add(path: str, content: str | bytes) -> None:
        files.append(File.generated(config, path, content=content))

    add("commands.md", describe_commands())
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    add("changelog.md", changelog.replace("](docs/", "]("))
    for path in [*sorted((ROOT / "docs/gallery").glob("*.ipynb")), ROOT / "examples/whymatch.ipynb"]:
        page, pictures = render_notebook(path)
        add(f"gallery/{path.stem}.md", page)
        for name, content in pictures.items():
            add(f"gallery/{name}", content)
        if old := files.get_file_from_path(f"gallery/{path.name}"):
            files.remove(old)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link to the pages of notebooks, and name files of the repository that are not part of the site."""
    if page.file.src_uri == "index.md" or page.file.src_uri.startswith("gallery/"):
        page.meta["hide"] = ["toc"]  # they have none, and need the room
    if page.file.src_uri == "gallery/index.md":
        markdown = make_cards(markdown)
    markdown = re.sub(r"\]\((?:\.\./\.\./examples/)?((?:gallery/)?[\w-]+)\.ipynb\)", r"](\1.md)", markdown)
    outside, folder = r"\.\./(?!\w[\w-]*\.md)[^)]*", r"[\w/-]+"
    return re.sub(rf"\[([^\]]+)\]\((?:{outside}|{folder})\)", r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Take the roles of docstrings away, :class: and the like, which are for tools and not for readers."""
    return re.sub(r":(?:attr|class|data|exc|func|meth|mod):(?=<(?:code|a|autoref))", "", html)


def make_cards(markdown: str) -> str:
    """Turn a list of notebooks into cards, each with the first figure of its notebook."""
    pattern = r"^- \[([^\]]+)\]\(((?:\.\./)*(?:examples/)?)([\w-]+)\.ipynb\) (.+)$"
    card = r"- [![](\3-1.png)](\2\3.ipynb)\n\n    **[\1](\2\3.ipynb)**\n\n    \4\n"
    cards, count = re.subn(pattern, card, markdown, flags=re.MULTILINE)
    first = cards.index("- [")
    return f'{cards[:first]}<div class="grid cards" markdown>\n\n{cards[first:]}\n</div>\n' if count else markdown


def describe_commands() -> str:
    """Describe every command with its arguments and options, as `--help` has them."""
    from typer.main import get_command

    from whymatch.cli import app

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for each in command.commands.values():
                yield from walk(each, f"{name} {each.name}")
        else:
            yield name, command

    lines = [
        "# Command line",
        "",
        "Made from the commands themselves. `whymatch COMMAND --help` says the same, and "
        "`whymatch --install-completion` completes them in your shell.",
    ]
    for name, command in walk(get_command(app), "whymatch"):
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        usage = " ".join(["[OPTIONS]", *(each.name.upper() for each in arguments)])
        text = re.sub(r"\s*\n\s*", " ", (command.help or "").split("\f")[0].split("\n\n")[0]).strip()
        lines += ["", f"## {name}", "", text, "", "```text", f"{name} {usage}", "```", ""]
        rows = []
        for parameter in command.params:
            if parameter.name == "help" or getattr(parameter, "hidden", False):
                continue
            names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
            if parameter.param_type_name == "argument":
                names = f"`{parameter.name.upper()}`"
            help_text = " ".join((getattr(parameter, "help", None) or "").split())
            default = parameter.default
            if (
                default not in (None, False, (), [])
                and not callable(default)
                and not getattr(parameter, "required", False)
            ):
                help_text += f" Default: `{getattr(default, 'value', default)}`."
            rows.append(f"| {names} | {help_text} |".replace("\n", " "))
        if rows:
            lines += ["| | |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def render_notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Turn a notebook into Markdown: its cells with the outputs that it was saved with, and their pictures."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    blocks: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).strip()
        if HIDDEN in cell.get("metadata", {}).get("tags", []) or not source:
            continue
        if cell["cell_type"] == "markdown":
            blocks.append(source)
            continue
        blocks.append(f"```python\n{source}\n```")
        blocks += [_render_output(output, path.stem, pictures) for output in cell["outputs"]]
    where = path.relative_to(ROOT).as_posix()
    blocks.append(f"*This page is a notebook that was run: `{where}`.*")
    return "\n\n".join(block for block in blocks if block) + "\n", pictures


def _render_output(output: Any, name: str, pictures: dict[str, bytes]) -> str:
    """Render one output; pictures are collected."""
    if output["output_type"] == "stream":
        return "```text\n" + "".join(output["text"]).rstrip() + "\n```"
    if output["output_type"] == "error":
        raise ValueError(f"the notebook {name} was saved with an error: {output['ename']}: {output['evalue']}")
    data = output["data"]
    if "image/png" in data:
        file = f"{name}-{len(pictures) + 1}.png"
        pictures[file] = base64.b64decode("".join(data["image/png"]))
        return f"![What the code above draws]({file})"
    if "text/html" in data:
        content = "".join(data["text/html"])
        # Blank lines would end the block of HTML, and what comes after them would be read as Markdown.
        return "<div>" + re.sub(r"\n\s*\n", "\n", content) + "</div>"
    return "```text\n" + "".join(data["text/plain"]).rstrip() + "\n```"
