"""Show the counts of the last whole run, ``torture/results.json``, in ``docs/robustness.md``.

python torture/report.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/robustness.md"
RESULTS = HERE / "results.json"


def table(results: dict) -> str:
    """One line for each attack."""
    lines = ["| attack | outcomes | failed |", "|---|---|---|"]
    for name, outcomes in results["attacks"].items():
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items() if outcome != "failed")
        lines.append(f"| {name} | {counts} | {outcomes.get('failed', 0):,} |")
    machine = results["machine"]
    lines += [
        "",
        f"Run on {results['date']} at commit {results['commit']}, {results['seconds'] / 60:.0f} minutes on "
        f"{machine['cores']} cores of an {machine['cpu']}, torch {machine['torch']}, scale {results['scale']:g}, "
        f"seed {results['seed']}.",
    ]
    return "\n".join(lines)


def main() -> None:
    if not RESULTS.exists():
        sys.exit(f"there is no {RESULTS.name}: run make torture")
    before = PAGE.read_text(encoding="utf-8")
    content = table(json.loads(RESULTS.read_text(encoding="utf-8")))
    after = re.sub(
        r"(<!-- torture -->\n).*?(\n<!-- /torture -->)",
        lambda match: match[1] + content + match[2],
        before,
        flags=re.DOTALL,
    )
    if "--check" in sys.argv:
        if before != after:
            sys.exit(f"{PAGE.name} does not show the last run: run python torture/report.py")
        return
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
