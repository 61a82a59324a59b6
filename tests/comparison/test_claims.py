"""Claims against results: what counts, what holds, and what cannot be judged."""

import json
from pathlib import Path

import pytest
import yaml

from poslab.comparison import Job
from poslab.comparison.claims import judge, judge_sweep, main, table
from poslab.config.schema import ClaimConfig, checked
from poslab.errors import ConfigError
from poslab.runs.names import CLAIMS_FILE
from support.configs import compose
from support.paths import CONF

METRIC = "length/40/exact_match"


def a_job(value: float | None, status: str = "completed", **settings: int | str) -> Job:
    settings = {name.replace("__", "."): level for name, level in settings.items()}
    return Job(
        sweep="s",
        name="-".join(map(str, settings.values())),
        folder=None,
        status=status,
        settings=settings,
        metrics={} if value is None else {METRIC: value},
    )


JOBS = [
    a_job(0.9, pos="alibi", seed=0),
    a_job(0.7, pos="alibi", seed=1),
    a_job(0.8, pos="alibi", seed=2),
    a_job(0.0, pos="rope", seed=0),
    a_job(0.0, pos="rope", seed=1),
    a_job(0.1, pos="t5", seed=0),
    a_job(0.3, pos="t5", seed=1),
    a_job(0.2, pos="t5", seed=2),
    a_job(1.0, "failed", pos="rope", seed=2),
    a_job(None, pos="learned", seed=0),
    a_job(0.5, pos="none", model__n_layers=4, seed=0),
    a_job(1.0, pos="fire", seed=0),
    a_job(1.0, pos="fire", seed=1),
    a_job(None, "diverged", pos="fire", seed=2),
]
# The mean of alibi is 0.8, and its one-sided 95 % bounds are 0.8 -+ 2.92 * 0.1 / sqrt(3): 0.631 and 0.969.


def a_claim(**expected: float | str) -> ClaimConfig:
    return ClaimConfig(claim="one", source="somebody", metric=METRIC, **expected)


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ({"where": "pos=alibi", "above": 0.63}, True),
        ({"where": "pos=alibi", "above": 0.64}, False),  # the mean is above it, its bound is not
        ({"where": "pos=alibi", "below": 0.97}, True),
        ({"where": "pos=alibi", "below": 0.96}, False),
        ({"where": "pos=alibi", "above": 0.5, "below": 0.9}, False),
        ({"where": "pos=rope", "below": 0.05}, True),  # the failed job's 1.0 does not count
        ({"where": "pos=none model.n_layers=4", "above": 0.4}, False),  # one seed shows nothing
        ({"where": "pos=none model.n_layers=2", "above": 0.4}, None),
        ({"where": "pos=learned", "below": 0.05}, None),  # no result is no zero
        ({"where": "pos=fire", "above": 0.5}, False),  # one of three diverged, and counts as zero
        # Seed by seed alibi is 0.8, 0.4 and 0.6 above t5: 0.6 - 2.92 * 0.2 / sqrt(3) = 0.263.
        ({"where": "pos=alibi", "than": "pos=rope|t5"}, True),
        ({"where": "pos=alibi", "than": "pos=t5", "by": 0.26}, True),
        ({"where": "pos=alibi", "than": "pos=t5", "by": 0.27}, False),
        ({"where": "pos=t5", "than": "pos=rope|alibi"}, False),
        ({"where": "pos=t5", "than": "pos=learned"}, None),
    ],
)
def test_a_claim_holds_if_the_bound_of_the_mean_over_seeds_passes(expected: dict, holds: bool | None):
    assert judge(a_claim(**expected), JOBS).holds is holds


def test_the_same_configuration_twice_counts_once():
    twice = [a_job(1.0, pos="alibi", seed=0), a_job(1.0, pos="alibi", seed=0), a_job(0.0, pos="alibi", seed=1)]
    assert judge(a_claim(where="pos=alibi", below=0.6), twice).measured.startswith("0.5 (0 to 1), 2 seeds")


def test_what_was_measured_is_said_with_spread_and_number():
    verdict = judge(a_claim(where="pos=alibi", than="pos=t5"), JOBS)
    assert verdict.measured == (
        "0.8 (0.7 to 0.9), 3 seeds; more than pos=t5 (0.2 (0.1 to 0.3), 3 seeds), by at least 0.263"
    )
    assert judge(a_claim(where="pos=fire", above=0.5), JOBS).measured == (
        "0.667 (0 to 1), 3 seeds, 1 diverged; at least -0.307"
    )
    alone = judge(a_claim(where="pos=none", above=0.4), JOBS)
    assert alone.measured == "0.5, 1 seed; no bound with one seed"
    assert verdict.expected == "more than pos=t5"


def test_a_claim_that_expects_nothing_is_refused():
    with pytest.raises(ConfigError, match="'one' expects nothing; give above, below or than"):
        a_claim(where="pos=alibi")


@pytest.mark.parametrize("name", ["where", "than"])
def test_a_word_that_is_no_setting_is_refused_and_not_dropped(name: str):
    with pytest.raises(ConfigError, match=rf"'one' has {name}='pos=alibi nokey', where 'nokey' is not key=value"):
        a_claim(above=0.1, **{name: "pos=alibi nokey"})


def test_a_metric_that_no_job_has_is_named_with_the_nearest():
    verdict = judge(ClaimConfig(claim="one", source="s", metric="length/40/exact_mach", above=0.5), JOBS)
    assert verdict.holds is None
    assert verdict.measured == f"no result is called length/40/exact_mach; did you mean '{METRIC}'?"


def test_two_sets_of_alternatives_are_refused():
    with pytest.raises(ConfigError, match="more than one set"):
        judge(a_claim(than="pos=rope|t5 seed=0|1"), JOBS)


def test_the_table_counts_and_escapes():
    verdicts = [judge(a_claim(where="pos=alibi", than="pos=rope|t5"), JOBS), judge(a_claim(above=1.0), JOBS)]
    text = table(verdicts)
    assert "2 claims: 1 hold, 1 are not shown, 0 are not judged" in text
    assert "pos=rope\\|t5" in text


def a_sweep(folder: Path) -> Path:
    """A sweep of two jobs, as its folder holds them."""
    for seed in (0, 1):
        run = folder / f"alibi{seed}"
        run.mkdir(parents=True)
        config = {"pos": {"_target_": "poslab.positions.alibi.ALiBi"}, "seed": seed}
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        (run / "result.json").write_text(json.dumps({"status": "completed", "metrics": {METRIC: 0.9}, "seed": seed}))
        (run / "metrics.csv").write_text(f"step,{METRIC}\n1,0.9\n")
    claims = [{"claim": "it copies", "source": "us", "where": "pos=alibi", "metric": METRIC, "above": 0.8}]
    (folder / CLAIMS_FILE).write_text(json.dumps(claims))
    return folder


def test_a_sweep_s_folder_is_judged_and_the_table_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sweep = a_sweep(tmp_path / "sweep")
    assert [verdict.holds for verdict in judge_sweep(sweep)] == [True]
    main([str(sweep)])
    assert "holds: it copies (above 0.8; measured 0.9 (0.9 to 0.9), 2 seeds; at least 0.9)" in capsys.readouterr().out
    assert "| it copies |" in (sweep / "claims.md").read_text()


@pytest.mark.parametrize(
    ("content", "message"), [(None, r"no claims\.json"), ("[{}]", "cannot be read"), ("{", "cannot be read")]
)
def test_a_sweep_without_claims_is_said_in_one_line(tmp_path: Path, content: str | None, message: str):
    sweep = a_sweep(tmp_path / "sweep")
    (sweep / CLAIMS_FILE).unlink() if content is None else (sweep / CLAIMS_FILE).write_text(content)
    with pytest.raises(SystemExit, match=f"^error: .*{message}") as stopped:
        main([str(sweep)])
    assert "\n" not in str(stopped.value)


CLAIMED = sorted((CONF / "experiment" / "claims").glob("*.yaml"))


@pytest.mark.parametrize("path", CLAIMED, ids=lambda path: path.stem)
def test_every_claim_in_conf_can_be_judged(path: Path):
    claims = checked(compose(f"experiment=claims/{path.stem}")).sweep.claims
    assert claims
    jobs = [a_job(0.5, pos="alibi", seed=0)]
    for claim in claims:
        judge(claim, jobs)
