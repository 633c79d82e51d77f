"""Sets of questions to measure on: the built-in few, or JSON-lines files in the form of the EAGLE repository."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """One first turn. `set_name` groups the results: the file's name, or the mode of a built-in prompt."""

    set_name: str
    text: str


BUILT_IN = (
    Question("chat", "What should I think about before I adopt a dog?"),
    Question("chat", "Explain to a ten-year-old why the sky is blue."),
    Question("maths", "A shop sells pens at $2 and notebooks at $5. What do 4 pens and 3 notebooks cost?"),
    Question("maths", "A train travels 180 km in 2 hours and 90 km in the next hour. What is its average speed?"),
    Question("code", "Write a Python function that returns the largest number in a list."),
    Question("code", "Write a Python function that counts the vowels in a string."),
)


def load_questions(path: Path | None, limit: int | None = None) -> list[Question]:
    """The first `limit` questions of every set. `path`: a `.jsonl` file or a folder of them; None: the built-in ones.

    Each line holds `turns`, of which the first is asked. Raises ValueError with the line that cannot be read.
    """
    if path is None:
        return list(BUILT_IN)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no .jsonl files; give a folder of question sets or one file.")
    return [question for file in files for question in _read(file)[:limit]]


def _read(file: Path) -> list[Question]:
    questions = []
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            questions.append(Question(file.stem, str(json.loads(line)["turns"][0])))
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"{file.name}, line {number}: expected an object with a list 'turns' ({error})."
            ) from error
    return questions
