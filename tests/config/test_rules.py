"""Near names are suggested."""

from poslab.config.rules import did_you_mean, nearest


def test_near_names():
    names = ["d_model", "n_heads"]
    assert nearest("d_modle", names) == "d_model"
    assert nearest("zzz", names) is None
    assert did_you_mean("n_head", names) == "; did you mean 'n_heads'?"
    assert did_you_mean("zzz", names) == "; there are: d_model, n_heads"
    assert did_you_mean("zzz", []) == "; there are: none"
