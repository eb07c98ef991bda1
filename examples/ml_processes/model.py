"""A small classifier of texts: naive Bayes over words. It knows no queue; it computes, and that takes the processor."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Example = tuple[str, str]
"""A text, and what it is."""


@dataclass(frozen=True)
class Model:
    """How often each word stands in texts of each kind, as logarithms."""

    kinds: dict[str, float]
    words: dict[str, dict[str, float]]
    unseen: dict[str, float]

    @classmethod
    def trained(cls, examples: Iterable[Example], *, rounds: int, tell: Callable[[float], object]) -> Model:
        """Counts words. More rounds make it slower and no better: they stand for a model that is worth its name."""
        given = list(examples)
        texts: Counter[str] = Counter()
        counts: dict[str, Counter[str]] = {}
        for number in range(rounds):
            texts, counts = Counter(), {}
            for text, kind in given:
                texts[kind] += 1
                counts.setdefault(kind, Counter()).update(_words(text))
            tell((number + 1) / rounds)
        known = {word for words in counts.values() for word in words}
        totals = {kind: sum(words.values()) + len(known) + 1 for kind, words in counts.items()}
        return cls(
            kinds={kind: math.log(count / len(given)) for kind, count in texts.items()},
            words={
                kind: {word: math.log((count + 1) / totals[kind]) for word, count in words.items()}
                for kind, words in counts.items()
            },
            unseen={kind: math.log(1 / total) for kind, total in totals.items()},
        )

    @classmethod
    def read(cls, file: Path) -> Model:
        return cls(**json.loads(file.read_text("utf-8")))

    def write(self, file: Path) -> None:
        """Whole or not at all: whoever reads it at this moment has the old one."""
        new = file.with_suffix(".new")
        new.write_text(json.dumps(vars(self)), "utf-8")
        new.rename(file)

    def kind_of(self, text: str) -> str:
        words = list(_words(text))
        return max(self.kinds, key=lambda kind: self._likelihood(kind, words))

    def _likelihood(self, kind: str, words: list[str]) -> float:
        known, unseen = self.words[kind], self.unseen[kind]
        return self.kinds[kind] + sum(known.get(word, unseen) for word in words)


def _words(text: str) -> Iterator[str]:
    return (word.strip(".,:;!?") for word in text.lower().split())
