"""Finding passages: BM25 over a corpus by the library bm25s; or embeddings, if EMBEDDINGS names a sentence-transformers model.

The corpus is the example's own, or a passages file the environment variable PASSAGES names: one JSON object per line with `title`
and `text` (or `contents`, the title in its first line).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import bm25s
import corpus
import numpy as np
from numpy.typing import NDArray

BEST = int(os.environ.get("BEST_PASSAGES", "4"))
"""Passages a search gives."""


class PassagesError(Exception):
    """The passages file cannot be read."""


class Index(Protocol):
    """Finds passages of one corpus."""

    def best(self, query: str, count: int = BEST) -> list[str]:
        """The passages that fit the query best, the best one first; none for a query that fits nothing."""
        ...


class BM25Index:
    """Okapi BM25 over words.

    Args:
        passages: the corpus.
    """

    def __init__(self, passages: Sequence[str]) -> None:
        self._passages = passages
        self._bm25 = bm25s.BM25()
        self._bm25.index(_tokens(passages), show_progress=False)

    def best(self, query: str, count: int = BEST) -> list[str]:
        """See `Index`."""
        tokens = _tokens([query])
        if not any(tokens):
            return []
        count = min(count, len(self._passages))
        found, scores = self._bm25.retrieve(tokens, k=count, show_progress=False)
        return [self._passages[i] for i, score in zip(found[0], scores[0], strict=True) if score > 0]


class EmbeddingIndex:
    """Cosine similarity of sentence embeddings.

    Args:
        passages: the corpus.
        model: folder or name of a sentence-transformers model.
    """

    def __init__(self, passages: Sequence[str], model: str) -> None:
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - only wanted when asked for

        self._passages = passages
        self._model = SentenceTransformer(model)
        self._vectors = self._embedded(passages)

    def best(self, query: str, count: int = BEST) -> list[str]:
        """See `Index`."""
        order = np.argsort(-(self._vectors @ self._embedded([query])[0]), kind="stable")
        return [self._passages[i] for i in order[:count]]

    def _embedded(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.asarray(self._model.encode(list(texts)), dtype=np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@cache
def index() -> Index:
    """The index of the corpus; made when first used."""
    named = os.environ.get("PASSAGES")
    passages = read(Path(named)) if named else corpus.passages()
    model = os.environ.get("EMBEDDINGS")
    return EmbeddingIndex(passages, model) if model else BM25Index(passages)


def read(path: Path) -> list[str]:
    """The passages of a file.

    Raises:
        PassagesError: it cannot be read, or a line is something else.
    """
    passages: list[str] = []
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                passages.append(record.get("contents") or f"{record.get('title', '')}\n{record['text']}".strip())
    except (OSError, UnicodeDecodeError) as error:
        raise PassagesError(f"{path} cannot be read: {error}") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        what = f"line {len(passages) + 1} is no JSON object with title and text, or contents"
        raise PassagesError(f"{path}: {what}") from error
    if not passages:
        raise PassagesError(f"{path} holds no passages")
    return passages


def _tokens(texts: Sequence[str]) -> list[list[str]]:
    return list(bm25s.tokenize(list(texts), stopwords=[], return_ids=False, show_progress=False))
