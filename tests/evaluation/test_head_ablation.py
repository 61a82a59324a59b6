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


def test_a_constant_head_that_a_bias_cancels_is_needed_by_zero_and_not_by_mean() -> None:
    """Head 1 writes the same vector at every position, and the bias of ``out_proj`` takes it away again."""
    torch.manual_seed(0)
    model = TinyAttentionLM(65, 8, 2, 12).eval()
    attention, data = model.attention, some_data()
    with torch.no_grad():
        columns = slice(4, 8)
        # Values of head 1: 30 everywhere, whatever the weights are.
        attention.qkv_proj.weight[16:][columns] = 0
        attention.qkv_proj.bias[16:][columns] = 30
        attention.out_proj.bias.copy_(-30 * attention.out_proj.weight[:, columns].sum(1))
        model.head.weight.mul_(4)
        model.token_embedding.embedding.weight.mul_(50)
    by_zero, by_mean = (head_ablation(model, data.validation.batches, way)[0] for way in (False, True))
    assert by_zero[1] > 5
    assert by_mean[1] == pytest.approx(0, abs=1e-4)
    assert abs(by_mean[0]) > 1e-4, "the other head depends on the tokens"


@pytest.mark.parametrize("model", models(), ids=["four-heads", "one-head", "three-layers"])
def test_ablation_by_the_mean_is_the_loss_with_the_mean_in_the_bias(model: LanguageModel) -> None:
    """Zeroed columns of ``out_proj`` and the mean output, by the weights and by hand, added to its bias."""
    model.eval()
    data = some_data(n=40)
    assert len(data.validation.batches) == 3, "one mean over all batches"
    whole = validation_loss(model, data)
    found = head_ablation(model, data.validation.batches, by_mean=True)
    for index, (attention, costs) in enumerate(zip(model.attention_layers(), found, strict=True)):
        outputs: list[torch.Tensor] = []
        handle = attention.out_proj.register_forward_pre_hook(lambda _, inputs, kept=outputs: kept.append(inputs[0]))
        with torch.no_grad():
            model(torch.cat([batch.tokens for batch in data.validation.batches]))
        handle.remove()
        mean = outputs[0].flatten(0, 1).mean(0)
        kept = {name: value.detach().clone() for name, value in attention.out_proj.state_dict().items()}
        for head, cost in enumerate(costs):
            columns = slice(head * attention.d_head, (head + 1) * attention.d_head)
            with torch.no_grad():
                attention.out_proj.bias += kept["weight"][:, columns] @ mean[columns]
                attention.out_proj.weight[:, columns] = 0
                wanted = validation_loss(model, data) - whole
                attention.out_proj.load_state_dict(kept)
            assert cost == pytest.approx(wanted, abs=1e-5), (index, head)


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
        head_ablation(model, some_data().validation.batches, by_mean=True)
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
