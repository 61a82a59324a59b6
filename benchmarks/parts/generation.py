"""Measure generation after a prompt, with and without the key/value cache."""

from functools import partial

import torch
from measure import in_turn, median, seconds_of
from tables import table

from poslab.evaluation.generation import generate
from poslab.model import TransformerLM
from poslab.positions.rope import RotaryPositions

REPEATS = 3
D_MODEL, N_HEADS, N_LAYERS, VOCABULARY, PROMPT = 64, 4, 2, 65, 8
LENGTHS = (32, 128, 512)


def write(model: TransformerLM, n_tokens: int, use_cache: bool) -> None:
    prompt = torch.arange(PROMPT)[None]
    for _ in generate(model, prompt, n_tokens, use_cache=use_cache):
        pass


def measure(repeats: int, full: bool) -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    context = PROMPT + max(LENGTHS)
    positions = RotaryPositions(D_MODEL // N_HEADS)
    model = TransformerLM(VOCABULARY, D_MODEL, N_HEADS, N_LAYERS, context, positions=positions).eval()
    measures = {
        (n, cached): partial(seconds_of, partial(write, model, n, cached)) for n in LENGTHS for cached in (True, False)
    }
    found = in_turn({f"{n} {cached}": measure for (n, cached), measure in measures.items()}, repeats)
    torch.set_num_threads(threads)
    rows = []
    for n in LENGTHS:
        cached, uncached = (1000 * median(found[f"{n} {way}"]) / n for way in (True, False))
        rows.append((n, cached, uncached, uncached / cached))
    return "\n\n".join(
        [
            "## Generation",
            f"`model=transformer`, D {D_MODEL}, {N_LAYERS} layers, RoPE, one row, one thread; ms per token.",
            table(("tokens", "with the cache", "without", "ratio"), rows),
        ]
    )
