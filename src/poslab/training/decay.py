"""Which parameters the weight decay applies to."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from poslab.config.schema import OptimizerConfig
from poslab.model import LanguageModel


def decayed_names(model: LanguageModel, decay_on: str) -> set[str]:
    """The names of the parameters of a single model that the weight decay applies to.

    Args:
        model: a single model; in a stack every parameter has one more axis, so its shapes say nothing about this.
        decay_on: ``all`` parameters; ``matrices``: those of two or more axes, so no biases and no norms; ``hidden``: of
            these only the ones that belong neither to the token table nor to the position scheme.

    Source of ``matrices``: the recipe of GPT-2 as nanoGPT has it. It decays the tables of tokens and positions too.
    """
    parameters = dict(model.named_parameters())
    if decay_on == "all":
        return set(parameters)
    tables = [*model.token_embedding.parameters(), *model.positions.parameters()] if decay_on == "hidden" else []
    left_out = {id(table) for table in tables}
    return {name for name, one in parameters.items() if one.dim() > 1 and id(one) not in left_out}


def parameter_groups(
    parameters: Iterable[tuple[str, nn.Parameter]], model: LanguageModel, config: OptimizerConfig
) -> list[dict[str, Any]]:
    """The parameter groups of the optimiser: one group if all parameters decay, as in runs before this setting.

    Args:
        parameters: those to train, by their names in a single model.
        model: a single model.
        config: the weight decay, and what it applies to.
    """
    decayed = decayed_names(model, config.weight_decay_on)
    by_decay: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in parameters:
        by_decay[name in decayed].append(parameter)
    groups = [{"params": by_decay[True], "weight_decay": config.weight_decay}]
    return groups if config.weight_decay_on == "all" else [*groups, {"params": by_decay[False], "weight_decay": 0.0}]
