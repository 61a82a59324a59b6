"""A covering array of the training options: rows in which every pair of values that can be combined occurs."""

from itertools import combinations, product

OPTIONS: dict[str, tuple[str, ...]] = {
    "precision": ("trainer.precision=32", "trainer.precision=bf16"),
    "clipping": ("trainer.gradient_clip_norm=null", "trainer.gradient_clip_norm=0.5"),
    "compile": ("compile=false", "compile=true"),
    "seeds": ("seeds=1", "seeds=2"),
    "accumulation": ("trainer.accumulate_batches=1", "trainer.accumulate_batches=2"),
    "stop": ("trainer.stop_when=null", "trainer.stop_when='val/loss>0'"),
    "dropout": ("model.dropout=0", "model.dropout=0.1"),
    "tie": ("model.tie_embeddings=false", "model.tie_embeddings=true"),
    "schedule": ("optimizer.decay=none", "optimizer.decay=linear"),
    "ranks": ("trainer=cpu", "trainer=ddp"),
}
# The pairs that cannot be, and what the refusal says.
REFUSED = {
    ("seeds=2", "model.dropout=0.1"): r"seeds=2 with model\.dropout=0\.1",
    ("seeds=2", "trainer=ddp"): r"seeds=2 with trainer=ddp",
    ("compile=true", "trainer=ddp"): r"compile=true with trainer\.strategy=ddp",
}
Row = tuple[str, ...]


def can_be(row: Row) -> bool:
    """Whether no pair of the row is refused."""
    return not any(first in row and second in row for first, second in REFUSED)


def pairs_of(row: Row) -> set[Row]:
    return set(combinations(row, 2))


def all_pairs() -> set[Row]:
    """Every pair of values of two options that can be combined."""
    pairs = {pair for one, two in combinations(OPTIONS.values(), 2) for pair in product(one, two)}
    return {pair for pair in pairs if can_be(pair)}


def covering_rows(candidates: list[Row], missing: set[Row]) -> list[Row]:
    """Rows that hold the missing pairs; each next row is the one that holds most of those still missing."""
    rows: list[Row] = []
    while missing:
        rows.append(max(candidates, key=lambda row: len(pairs_of(row) & missing)))
        missing = missing - pairs_of(rows[-1])
    return rows


ALL = [row for row in product(*OPTIONS.values()) if can_be(row)]
QUICK_ONES = [row for row in ALL if "trainer=cpu" in row and "compile=false" in row]
ALONE = covering_rows(QUICK_ONES, set().union(*map(pairs_of, QUICK_ONES)))
"""Rows for one process without a compiler."""
REST = covering_rows(ALL, all_pairs() - set().union(*map(pairs_of, ALONE)))
"""Rows that start ranks or a compiler."""
QUICK = (
    "trainer.max_steps=3",
    "trainer.log_every_n_steps=1",
    "trainer.accelerator=cpu",
    "data.steps_per_epoch=2",
    "data.val_examples=8",
)
QUIET = ("diagnostics=none", "logger=none", "model.d_model=8", "model.n_heads=2")
