"""The table of parameters."""

from poslab.diagnostics import Scalars, Text
from poslab.diagnostics.parameters import Parameters, parameter_table
from support.probes import a_model, findings


def test_parameters_are_told_once() -> None:
    diagnostic, model = Parameters(), a_model()
    scalars, text = findings(diagnostic, model)
    assert isinstance(scalars, Scalars)
    assert isinstance(text, Text)
    assert scalars.values["parameters/total"] == sum(p.numel() for p in model.parameters())
    assert text.markdown.splitlines()[2] == "| total | 8,833 | 100.0% |"
    assert findings(diagnostic, model) == []


def test_parameter_table_of_an_empty_model() -> None:
    assert parameter_table({"total": 0, "position": 0}).splitlines()[2:] == [
        "| total | 0 | 0.0% |",
        "| position | 0 | 0.0% |",
    ]
