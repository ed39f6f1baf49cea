"""The budgets of lines that `make lint` holds."""

from pathlib import Path

from . import room_sizes


def test_lines_of_python_are_counted_by_room(tmp_path: Path) -> None:
    for name, text in {
        "ops/a.py": "one\n\n# three",
        "ops/deep/b.py": "one\n",
        "ops/notes.md": "no Python\n",
        "jit/empty.py": "",
        "build/lib/a.py": "one\n",
        ".venv/a.py": "one\n",
        "setup.py": "one\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert room_sizes.sizes(tmp_path) == {"ops": 4, "jit": 0}


def test_a_room_is_at_most_as_long_as_its_budget() -> None:
    assert room_sizes.problems({"ops": 100}, {"ops": 100}) == []
    (over,) = room_sizes.problems({"ops": 1101, "jit": 5}, {"ops": 1100, "jit": 100})
    assert over.startswith("room ops has 1,101 lines, its budget is 1,100: ")
    assert room_sizes.TABLE in over


def test_rooms_and_table_name_each_other() -> None:
    assert room_sizes.problems({"new": 1}, {}) == [
        "room new has no budget: add it to [tool.kvarn.line-budgets] of pyproject.toml"
    ]
    assert room_sizes.problems({}, {"old": 1}) == [
        "there is no room old: remove it from [tool.kvarn.line-budgets] of pyproject.toml"
    ]


def test_the_table_is_where_the_words_say() -> None:
    assert {"ops", "tests"} < room_sizes.budgets(room_sizes.ROOT).keys()
