"""The loss without a head's output: held against zeroed columns, and the model stays as it was."""

from typing import Any

import pytest
import torch

from poslab.data.module import SeedData
from poslab.evaluation.heads import head_ablation, without_heads
from poslab.evaluation.metrics import score
from poslab.model import LanguageModel, TinyAttentionLM, TransformerLM
from support.two_models import models, some_data


def validation_loss(model: LanguageModel, data: SeedData) -> float:
    with torch.no_grad():
        found = [score(model(batch.tokens), batch.targets) for batch in data.validation.batches]
    return float(sum(one.loss_sum for one in found) / sum(one.tokens for one in found))


@pytest.mark.parametrize("model", models(), ids=["four-heads", "one-head", "three-layers"])
def test_ablation_is_the_loss_with_zeroed_columns_minus_the_whole(model: LanguageModel) -> None:
    """A head whose columns of ``out_proj`` are zero gives nothing: the same by the weights instead of the hook."""
    model.eval()
    data = some_data()
    whole = validation_loss(model, data)
    found = head_ablation(model, data.validation.batches)
    assert [len(of_layer) for of_layer in found] == [one.n_heads for one in model.attention_layers()]
    for attention, costs in zip(model.attention_layers(), found, strict=True):
        kept = attention.out_proj.weight.detach().clone()
        for head, cost in enumerate(costs):
            with torch.no_grad():
                attention.out_proj.weight[:, head * attention.d_head : (head + 1) * attention.d_head] = 0
                wanted = validation_loss(model, data) - whole
                attention.out_proj.weight.copy_(kept)
            assert cost == pytest.approx(wanted, abs=1e-6)
            assert cost != 0
    assert validation_loss(model, data) == whole


def state_of(model: LanguageModel) -> tuple[Any, ...]:
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = [(name, len(module._forward_pre_hooks)) for name, module in model.named_modules()]
    return tensors, hooks, [module.training for module in model.modules()], torch.get_rng_state()


def assert_same(before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    assert all(torch.equal(tensor, after[0][name]) for name, tensor in before[0].items())
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_left_bit_for_bit_as_it_was(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TransformerLM(65, 16, 2, 2, 12, dropout=0.2)
    model.train()
    model.blocks[1].mlp.eval()  # a mode of its own is kept too
    before = state_of(model)
    if fails:
        calls = []

        def layer(index: int, x: torch.Tensor, *rest: Any) -> torch.Tensor:
            calls.append(index)
            if len(calls) > 5:
                raise RuntimeError("in the middle")
            return type(model).layer(model, index, x, *rest)

        monkeypatch.setattr(model, "layer", layer)
        with pytest.raises(RuntimeError, match="in the middle"):
            head_ablation(model, some_data().validation.batches)
        monkeypatch.undo()
    else:
        head_ablation(model, some_data().validation.batches)
    assert_same(before, state_of(model))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_removed_head_is_zero_even_where_its_output_is_none() -> None:
    model = TinyAttentionLM(65, 8, 2, 12)
    seen: list[torch.Tensor] = []
    with without_heads(model.attention, [1]):
        handle = model.attention.out_proj.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model.attention.out_proj(torch.full((1, 3, 8), torch.inf))
        handle.remove()
    assert torch.equal(seen[0], torch.tensor([torch.inf] * 4 + [0.0] * 4).expand(1, 3, 8))


@pytest.mark.parametrize("head", [-1, 2])
def test_a_head_that_is_none_is_refused(head: int) -> None:
    attention = TinyAttentionLM(65, 8, 2, 12).attention
    with pytest.raises(ValueError, match=f"head {head} does not exist; .* 2 heads"), without_heads(attention, [head]):
        pass
    assert not attention.out_proj._forward_pre_hooks
