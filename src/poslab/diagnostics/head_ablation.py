"""How much the loss rises without each head."""

from collections.abc import Iterable, Sequence

from torch import Tensor

from poslab.data.module import Probe
from poslab.diagnostics.base import TOKENS, Diagnostic, Finding, Scalars
from poslab.evaluation.heads import head_ablation
from poslab.model import LanguageModel
from poslab.tasks import Task


def tag(layer: int, head: int, by_mean: bool = False) -> str:
    return f"head_ablation{'_mean' if by_mean else ''}/layer_{layer}/head_{head}"


class HeadAblation(Diagnostic):
    """Scalars ``head_ablation/layer_<i>/head_<j>`` and ``head_ablation_mean/layer_<i>/head_<j>``.

    The first is the loss with the output of that head set to 0, minus the loss with all heads. The second is the same
    with the output set to its mean over all positions of the examples: a head whose output is always the same has 0
    here, although the loss may rise without this constant.

    In nats per token, over the first examples of the validation set, with an equal share of each length. A look costs
    two passes over them for each head and three more, so by default it is taken at every third validation.

    Args:
        every: validations from one look to the next; 0 switches the diagnostic off.
        examples: number of examples, at most those of the validation set; None: 64, or fewer long ones, with `TOKENS`
            tokens in total but at least 8.

    Raises:
        ValueError: ``examples < 1``.
    """

    def __init__(self, every: int = 3, examples: int | None = None) -> None:
        super().__init__(every)
        if examples is not None and examples < 1:
            raise ValueError(f"examples={examples} must be at least 1")
        self.examples = examples
        self.costs: dict[int, list[list[float]]] = {}
        """The results of the last look, by step, layer and head, with the outputs set to their means."""
        self._batches: list[tuple[Tensor, Tensor]] = []

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        heads = [(layer, head) for layer, one in enumerate(model.attention_layers()) for head in range(one.n_heads)]
        return [tag(layer, head, by_mean) for layer, head in heads for by_mean in (False, True)]

    def look(self, model: LanguageModel, probe: Probe) -> Iterable[Finding]:
        if not self._batches:
            data = probe.data
            chosen = max(8, min(64, TOKENS // probe.tokens.shape[1])) if self.examples is None else self.examples
            examples = min(chosen, data.config.n_val_examples(data.task.seq_len))
            device = probe.tokens.device
            self._batches = [
                (batch.tokens.to(device), batch.targets.to(device))
                for batch in data.examples(examples, data.task.lengths).batches
            ]
        by_zero, by_mean = (head_ablation(model, self._batches, way) for way in (False, True))
        self.costs.clear()
        if self._last_look is not None:
            self.costs[self._last_look] = by_mean
        yield Scalars(_by_tag(by_zero, by_mean=False) | _by_tag(by_mean, by_mean=True))


def _by_tag(costs: Sequence[Sequence[float]], by_mean: bool) -> dict[str, float]:
    return {
        tag(layer, head, by_mean): cost for layer, of_layer in enumerate(costs) for head, cost in enumerate(of_layer)
    }
