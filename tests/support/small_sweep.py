"""A sweep of jobs that were never trained, and what its comparison leaves."""

import csv
import io
import json
from pathlib import Path

from support.job_folders import write_job

FILES = {
    "comparison.csv",
    "comparison.md",
    "comparison.html",
    "comparison.json",
    "comparison/loss_curves.png",
    "comparison/accuracy_by_setting.png",
    "comparison/parameters_against_result.png",
    "comparison/exact_match_by_length.png",
}


def small_sweep(folder: Path, wall_seconds: float = 3.0) -> Path:
    """Two schemes, two numbers of heads, three seeds; one diverged, one broken, one refused."""
    for pos, steps in (("learned", 400), ("sinusoidal", 200)):
        for heads in (4, 16):
            for seed in (1, 2, 3):
                lost = pos == "learned" and heads == 16 and seed == 3
                write_job(
                    folder / f"{pos}-{heads}-{seed}",
                    status="diverged" if lost else "completed",
                    error="DivergedError: loss nan\n</script><b>at</b> step 40 | lower the rate" if lost else None,
                    steps_to_99=steps + 10 * seed + heads,
                    loss=0.001 * seed,
                    pictures=0 if lost else 100,
                    metrics={"length/9/exact_match": 0.5, "length/12/exact_match": 0.25},
                    wall_seconds=wall_seconds + seed,
                    overrides=[f"pos={pos}", f"model.n_heads={heads}", f"seed={seed}", "resume=auto"],
                    pos=pos,
                    model__n_heads=heads,
                    seed=seed,
                )
    (folder / "learned-4-1" / "result.json").write_text("{")
    refused = [{"overrides": ["pos=learned", "model.n_heads=5", "seed=1"], "reason": "32 has no 5 equal heads"}]
    (folder / "invalid.json").write_text(json.dumps(refused))
    return folder


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(target: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((target / "comparison.csv").read_text())))
