"""What the loss costs without each head."""

from collections.abc import Iterable

from torch import Tensor

from poslab.data.module import Probe
from poslab.diagnostics.base import TOKENS, Diagnostic, Finding, Scalars
from poslab.evaluation.heads import head_ablation
from poslab.model import LanguageModel
from poslab.tasks import Task


def tag(layer: int, head: int) -> str:
    return f"head_ablation/layer_{layer}/head_{head}"


class HeadAblation(Diagnostic):
    """Scalar ``head_ablation/layer_<i>/head_<j>``: the loss with that head's output removed minus the loss with all.

    In nats per token, over the first examples of the validation set, every length with its equal share. A look costs
    one pass over them for each head and one more, so it is taken less often than others.

    Args:
        every: validations from one look to the next; 0 switches the diagnostic off.
        examples: at most this many of the validation set's; None: 64, or where they are long as many as have
            `TOKENS` tokens, but 8.

    Raises:
        ValueError: ``examples < 1``.
    """

    def __init__(self, every: int = 3, examples: int | None = None) -> None:
        super().__init__(every)
        if examples is not None and examples < 1:
            raise ValueError(f"examples={examples} must be at least 1")
        self.examples = examples
        self.costs: dict[int, list[list[float]]] = {}
        """The newest finding by its step, by layer and head."""
        self._batches: list[tuple[Tensor, Tensor]] = []

    def scalar_names(self, task: Task, model: LanguageModel) -> list[str]:
        layers = enumerate(model.attention_layers())
        return [tag(layer, head) for layer, attention in layers for head in range(attention.n_heads)]

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
        costs = head_ablation(model, self._batches)
        self.costs.clear()
        if self._last_look is not None:
            self.costs[self._last_look] = costs
        yield Scalars(
            {tag(layer, head): cost for layer, of_layer in enumerate(costs) for head, cost in enumerate(of_layer)}
        )
