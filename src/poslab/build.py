"""Builds the task, the position scheme and the model of a checked configuration."""

import inspect
from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from poslab.config.rules import did_you_mean
from poslab.config.schema import TrainConfig, check_target
from poslab.errors import ConfigError
from poslab.sizes import Sizes, model_parts, require, scoring_part, training_parts, validation_parts
from poslab.system.memory import device_memory_bytes, memory_bytes
from poslab.system.shell import typed_path
from poslab.tasks import Task

if TYPE_CHECKING:
    from poslab.model import LanguageModel
    from poslab.positions import PositionScheme


T = TypeVar("T")


def build(key: str, options: dict[str, Any], base: type[T], **offered: Any) -> T:
    """Build the class that ``options`` name by ``_target_``, with the other options as arguments.

    Args:
        key: the key of the options in the configuration, for messages.
        options: the class and its arguments.
        base: the class has to be a subclass of it.
        offered: further arguments, used if the constructor has parameters of their names (sizes, for example).

    Raises:
        ConfigError: a class outside this package or of another kind, an unknown option, or values that the constructor
            refuses.
    """
    target = options["_target_"]
    check_target(key, target)
    module_name, _, class_name = target.rpartition(".")
    try:
        found = getattr(import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}._target_={target} does not exist ({error})") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{key}._target_={target} is not a {base.__name__}")
    arguments = {name: value for name, value in options.items() if name != "_target_"}
    parameters = inspect.signature(found).parameters.values()
    accepted = {one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    types = {one.name: one.annotation for one in parameters}
    for name, value in arguments.items():
        if name in offered or name not in accepted:
            options_of_class = [f"{key}.{option}" for option in accepted - set(offered)]
            raise ConfigError(f"unknown key '{key}.{name}'{did_you_mean(f'{key}.{name}', options_of_class)}")
        if not _fits(value, types[name]):
            wanted = getattr(types[name], "__name__", types[name])
            raise ConfigError(f"{key}.{name}: value '{value}' of type '{type(value).__name__}' is not of type {wanted}")
    filled = {name: value for name, value in offered.items() if name in accepted}
    try:
        return found(**arguments, **filled)
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {' '.join(str(error).split())}") from error


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value from a yaml file is of an annotated type; any type but a plain one is checked by the class."""
    kinds = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    if not all(isinstance(kind, type) for kind in kinds):
        return True
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, (*kinds, int) if float in kinds else kinds)


def build_task(config: TrainConfig) -> Task:
    """Build the task and check it against the sizes that the model is given.

    Raises:
        ConfigError: an invalid task, or a vocabulary or context that is smaller than the task's.
    """
    task = build("task", config.task, Task)  # type: ignore[type-abstract]
    vocab_size, context = config.model.vocab_size, config.model.max_context_length
    if vocab_size is not None and vocab_size < task.vocab_size:
        raise ConfigError(
            f"model.vocab_size={vocab_size} is smaller than the task's vocabulary of {task.vocab_size} tokens; "
            f"use at least {task.vocab_size}, or null to follow the task"
        )
    if context is not None and context < task.seq_len:
        raise ConfigError(
            f"model.max_context_length={context} is shorter than the task's sequence of {task.seq_len} tokens; "
            f"use at least {task.seq_len}, or null to follow the task"
        )
    return task


def build_positions(config: TrainConfig, task: Task) -> "PositionScheme":
    """Build the position scheme at the sizes of the model.

    Raises:
        ConfigError: sizes that the scheme refuses (an odd ``d_model``, for example).
    """
    from poslab.positions import PositionScheme

    return build(
        "pos",
        config.pos,
        PositionScheme,
        max_context_length=config.model.max_context_length or task.seq_len,
        d_model=config.model.d_model,
        n_heads=config.model.n_heads,
        d_head=config.model.d_model // config.model.n_heads,
        n_layers=config.model.n_layers,
    )


def check_model_fits(config: TrainConfig, task: Task) -> None:
    """Refuse a model that does not fit the memory, before a part of it is made.

    Raises:
        ConfigError: one line that names the values and the way out.
    """
    from poslab.model import check_context

    try:
        check_context(config.model.max_context_length or task.seq_len)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
    require(model_parts(sizes_of(config, task)), memory_bytes())


def check_memory(config: TrainConfig, task: Task) -> None:
    """Refuse a job whose training does not fit the memory, before anything of its size is made.

    Raises:
        ConfigError: one line that names the largest part, the values and the way out.
    """
    sizes = sizes_of(config, task)
    require(training_parts(sizes), device_memory_bytes(config.trainer.accelerator), config.seeds)
    require(validation_parts(sizes), memory_bytes())


def check_scoring_memory(config: TrainConfig, task: Task) -> None:
    """Refuse examples whose scoring does not fit the memory, before they are generated.

    Args:
        config: says how many examples, and how many at a time.
        task: of the job.

    Raises:
        ConfigError: one line that names the largest part, the values and the way out.
    """
    sizes = sizes_of(config, task)
    require([*model_parts(sizes), *validation_parts(sizes), scoring_part(sizes)], memory_bytes())


def sizes_of(config: TrainConfig, task: Task) -> Sizes:
    """The sizes that decide what a job needs of the memory."""
    return Sizes(
        vocab_size=config.model.vocab_size or task.vocab_size,
        d_model=config.model.d_model,
        n_layers=config.model.n_layers,
        context=config.model.max_context_length or task.seq_len,
        tied=config.model.tie_embeddings,
        with_mlp=config.model.architecture == "transformer",
        bf16=config.trainer.precision == "bf16",
        batch_size=config.data.batch_size,
        processes=config.trainer.devices * config.trainer.num_nodes,
        val_batch_size=config.data.val_batch_size,
        val_examples=config.data.n_val_examples(task.seq_len),
        seq_len=task.seq_len,
    )


def build_model(config: TrainConfig, task: Task) -> "LanguageModel":
    """Build the model, with fresh parameters from torch's global random state.

    Raises:
        ConfigError: sizes that do not fit each other.
    """
    from poslab.model import TinyAttentionLM, TokenEmbedding, TransformerLM

    model = config.model
    vocab_size = model.vocab_size or task.vocab_size
    check_model_fits(config, task)
    positions = build_positions(config, task)
    try:
        file = None if model.token_file is None else typed_path(model.token_file)
        table = TokenEmbedding(vocab_size, model.d_model, model.token_init_std, model.token_init, file)
        arguments: dict[str, Any] = {
            "vocab_size": vocab_size,
            "d_model": model.d_model,
            "n_heads": model.n_heads,
            "max_context_length": model.max_context_length or task.seq_len,
            "positions": positions,
            "tie_embeddings": model.tie_embeddings,
            "token_embedding": table,
            "dropout": model.dropout,
        }
        if model.architecture == "attention":
            return TinyAttentionLM(**arguments)
        return TransformerLM(n_layers=model.n_layers, scale_residuals=model.scale_residuals, **arguments)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
