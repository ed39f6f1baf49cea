"""Lines of Python in each room beside its budget; `make lint` prints them and fails above it.

The budgets are a table of `pyproject.toml`.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = "[tool.kvarn.line-budgets] of pyproject.toml"
NO_ROOMS = {"build", "dist"}


def budgets(root: Path) -> dict[str, int]:
    """Room → the most lines that it may have."""
    with (root / "pyproject.toml").open("rb") as file:
        table: dict[str, int] = tomllib.load(file)["tool"]["kvarn"]["line-budgets"]
    return table


def sizes(root: Path) -> dict[str, int]:
    """Room → lines in its Python files, comments and empty lines included."""
    rooms: dict[str, int] = {}
    for path in root.glob("*/**/*.py"):
        room = path.relative_to(root).parts[0]
        if not room.startswith(".") and room not in NO_ROOMS:
            lines = len(path.read_text(encoding="utf-8").splitlines())
            rooms[room] = rooms.get(room, 0) + lines
    return rooms


def problems(lines: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """One line about each room that is over its budget, or that only one of the two has."""
    return [
        *(f"room {room} has no budget: add it to {TABLE}" for room in lines.keys() - allowed),
        *(f"there is no room {room}: remove it from {TABLE}" for room in allowed.keys() - lines),
        *(
            f"room {room} has {lines[room]:,} lines, its budget is {allowed[room]:,}: make it "
            f"shorter, or raise the budget in {TABLE} and say in the commit what the lines are for"
            for room in sorted(lines.keys() & allowed)
            if lines[room] > allowed[room]
        ),
    ]


def main() -> int:
    lines, allowed = sizes(ROOT), budgets(ROOT)
    for room, budget in allowed.items():
        print(f"{room:10}{lines.get(room, 0):8,} lines of {budget:,}")
    wrong = problems(lines, allowed)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
