"""Overrides as Hydra and the shell read them."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from poslab.config.overrides import job_overrides, key_of, override, quoted_condition
from poslab.system.shell import shell_quoted

AWKWARD = [
    "plain",
    "with space",
    "it's",
    "a=b,c",
    "back\\slash",
    "trailing\\",
    "q\\'uote",
    'dou"ble',
    "$HOME `x`!",
    "~x",
]


@pytest.mark.parametrize("value", AWKWARD)
def test_a_value_survives_the_override_grammar_and_the_shell(value: str):
    parser = OverridesParser.create()
    typed = override("hydra.run.dir", value)
    assert str(parser.parse_override(typed).value()) == value
    (word,) = shlex.split(shell_quoted(typed))
    assert word == typed


@pytest.mark.parametrize(("value", "shown"), [("outputs/run-1", "key=outputs/run-1"), ("a b", "\"key='a b'\"")])
def test_quotes_are_shown_only_where_they_are_needed(value: str, shown: str):
    assert shell_quoted(override("key", value)) == shown


@pytest.mark.parametrize("typed", ["a.b=1", "+a.b=1", "++a.b=c=d", "~a.b", "a.b"])
def test_the_key_of_an_override(typed: str):
    assert key_of(typed) == "a.b"


def test_how_a_job_is_started_again_does_not_make_it_another():
    kept = ["seed=1", "ckpt_path=x", "diagnostics=none", "trainer.threads=2"]
    left_out = ["resume=auto", "sweep.resume=latest", "+hydra.run.dir=x", "hydra/launcher=joblib"]
    assert job_overrides([*left_out, *kept]) == kept


@pytest.mark.parametrize(
    ("typed", "conditions"),
    [
        ("trainer.stop_when=val/exact_match>=1", ["val/exact_match>=1"]),
        ("trainer.stop_when=val/loss<0.1,val/loss<0.01", ["val/loss<0.1", "val/loss<0.01"]),
        ("trainer.stop_when='val/loss<0.1'", ["val/loss<0.1"]),
        ("trainer.stop_when=null", [None]),
    ],
)
def test_a_condition_is_typed_without_the_quotes_that_hydra_wants(typed: str, conditions: list[str | None]) -> None:
    word = quoted_condition(typed)
    read = OverridesParser.create().parse_override(word)
    values = [*read.sweep_iterator()] if read.is_sweep_override() else [read.value()]
    assert [getattr(value, "text", value) for value in values] == conditions
    assert quoted_condition(word) == word
    assert quoted_condition("task=copy") == "task=copy"
