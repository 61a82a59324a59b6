"""Base class of the tasks of the form ``source SEP answer``.

A subclass defines how sources are drawn (`sources`), which source tokens make up the answer (`places`) and, for the
oracle, the same rule for one symbol at a time (`deduce_symbol`).
"""

from abc import abstractmethod

import numpy as np
from jaxtyping import Bool, Int64

from poslab.tasks.base import IGNORED, Batch, Task, check_at_least


class Transduction(Task):
    """``[BOS] source SEP answer [EOS]``: the model has to write, after the separator, the answer to the source.

    Answer and EOS count in loss and accuracy; the source is ignored. Token ids: symbols ``0 .. n_symbols - 1``, then
    SEP, then BOS and EOS if they are used.

    Args:
        n_symbols: number of different symbols in sources.
        length: n, the number of symbols in the answer, the largest in training.
        min_length: the smallest n in training, where each batch draws one; None: always ``length``.
        bos: start every row with a BOS token.
        eos: end every answer with an EOS token, which is a target too.

    Raises:
        ValueError: a size that is too small; names it.
    """

    def __init__(
        self, n_symbols: int, length: int, min_length: int | None = None, bos: bool = False, eos: bool = False
    ) -> None:
        check_at_least(2, n_symbols=n_symbols)
        self.n_symbols = n_symbols
        self.separator = n_symbols
        self.bos = n_symbols + 1 if bos else None
        self.eos = n_symbols + 1 + bos if eos else None
        self.vocab_size = n_symbols + 1 + bos + eos
        super().__init__(length, min_length)

    @property
    def source_start(self) -> int:
        """Index of the first source token in a row."""
        return 0 if self.bos is None else 1

    def source_length(self, length: int) -> int:
        """S, the number of tokens in the source of an answer of ``length`` symbols."""
        return length

    def seq_len_at(self, length: int) -> int:
        # Without the last token of a row: it is a target only.
        return self.source_start + self.source_length(length) + length + (self.eos is not None)

    @abstractmethod
    def sources(self, rng: np.random.Generator, batch_size: int, length: int) -> Int64[np.ndarray, "b s"]:
        """Draw sources (B, S) whose answers have ``length`` symbols."""

    @abstractmethod
    def places(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        """Index in its source of each symbol of the answer, (B, n), counted from the source's first token."""

    @abstractmethod
    def deduce_symbol(self, source: list[int], written: int) -> int | None:
        """The oracle's rule: the next symbol of the answer after ``written`` symbols; None if there is no next one.

        Implement it without `places`: the oracle is there to check it.
        """

    def answers(self, sources: Int64[np.ndarray, "b s"]) -> Int64[np.ndarray, "b n"]:
        """The answers (B, n) to the sources (B, S)."""
        return np.take_along_axis(sources, self.places(sources), axis=1)

    def sample_at(self, rng: np.random.Generator, batch_size: int, length: int) -> Batch:
        sources = self.sources(rng, batch_size, length)
        separator = self.source_start + sources.shape[1]
        # One token more than the model reads: the last target.
        rows = np.empty((batch_size, self.seq_len_at(length) + 1), dtype=np.int64)
        if self.bos is not None:
            rows[:, 0] = self.bos
        rows[:, self.source_start : separator] = sources
        rows[:, separator] = self.separator
        rows[:, separator + 1 : separator + 1 + length] = self.answers(sources)
        if self.eos is not None:
            rows[:, -1] = self.eos
        targets = rows[:, 1:].copy()
        targets[:, :separator] = IGNORED
        return Batch(rows[:, :-1], targets)

    def token_label(self, token: int) -> str:
        names = {self.separator: "SEP", self.bos: "BOS", self.eos: "EOS"}
        return names.get(token) or super().token_label(token)

    def separator_index(self, tokens: Int64[np.ndarray, " t"]) -> int:
        """Index of the separator in one sequence; T if it has none."""
        found = np.flatnonzero(tokens == self.separator)
        return int(found[0]) if len(found) else len(tokens)

    def answer_cells(self, tokens: Int64[np.ndarray, " t"]) -> Bool[np.ndarray, "t t"]:
        cells = np.zeros((len(tokens), len(tokens)), dtype=bool)
        separator = self.separator_index(tokens)
        places = self.places(tokens[None, self.source_start : separator])[0]
        # EOS has no cell: it does not occur in the source. Of an unfinished row, only the queries so far have cells.
        for written, place in enumerate(places[: len(tokens) - separator]):
            cells[separator + written, self.source_start + place] = True
        return cells

    def deduce(self, tokens: Int64[np.ndarray, " t"]) -> Int64[np.ndarray, " t"]:
        targets = np.full(len(tokens), IGNORED)
        separator = self.separator_index(tokens)
        source = tokens[self.source_start : separator].tolist()
        for query in range(separator, len(tokens)):
            symbol = self.deduce_symbol(source, query - separator)
            if symbol is None:
                symbol = self.eos
            if symbol is not None:
                targets[query] = symbol
        return targets

    def prompt(self, symbols: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " t"]:
        """Build ``[BOS] symbols SEP``; BOS and SEP are not added if ``symbols`` has them already."""
        parts = [symbols]
        if self.bos is not None and (not len(symbols) or symbols[0] != self.bos):
            parts.insert(0, np.array([self.bos]))
        if self.separator not in symbols:
            parts.append(np.array([self.separator]))
        return np.concatenate(parts)

    def answer_length(self, prompt: Int64[np.ndarray, " t"]) -> int:
        """Number of tokens in the answer, EOS included, minus those that the prompt already has after the separator."""
        separator = self.separator_index(prompt)
        answer = self.answers(prompt[None, self.source_start : separator]).shape[1] + (self.eos is not None)
        return max(0, answer - (len(prompt) - separator - 1))
