"""Every rule of the configuration: what breaks it, and what the one-line message has to name."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from poslab.config.schema import checked
from poslab.errors import ConfigError
from support.configs import compose, refusal
from support.paths import CONF

GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")


# What is typed (several overrides with a space between), and what the message has to hold, parts with a | between.
AT_LEAST_1 = [
    *(f"data.{name}" for name in ("batch_size", "steps_per_epoch", "val_examples", "val_batch_size")),
    *(f"model.{name}" for name in ("d_model", "n_heads", "n_layers", "max_context_length", "vocab_size")),
    *(f"trainer.{name}" for name in ("devices", "max_epochs", "log_every_n_steps")),
]


RULES = {
    # sizes that do not fit each other
    "model.n_heads=5": "model.d_model=32|model.n_heads=5|1, 2, 4, 8, 16, 32",
    "model.d_model=33": "model.d_model=33|model.n_heads=4|1, 3, 11, 33",
    "pos=sinusoidal model.d_model=33 model.n_heads=3": "d_model 33|odd|34",
    "model.max_context_length=11": "model.max_context_length=11|12 tokens|at least 12",
    "model.max_context_length=12 task.length=7": "model.max_context_length=12|14 tokens",
    "model.vocab_size=64": "model.vocab_size=64|65 tokens|at least 65",
    "task=repeat model.vocab_size=63": "model.vocab_size=63|64 tokens",
    "task.n_symbols=100 model.vocab_size=100": "model.vocab_size=100|101 tokens",
    "trainer=ddp trainer.devices=3": "data.batch_size=16|trainer.devices=3",
    "trainer.devices=2": "trainer.devices=2|trainer=ddp",
    "trainer=fsdp trainer.devices=3": "data.batch_size=16|trainer.devices=3",
    "trainer=ddp trainer.num_nodes=3": "data.batch_size=16|trainer.devices=2 on trainer.num_nodes=3",
    "trainer.num_nodes=2": "trainer.num_nodes=2|trainer=ddp",
    "trainer=ddp trainer.num_nodes=0": "trainer.num_nodes=0|at least 1",
    "deterministic=perhaps": "deterministic=perhaps|neither true nor false",
    # empty data and other sizes below their minimum
    **{f"{key}=0": f"{key}=0|at least 1" for key in AT_LEAST_1},
    "data.batch_size=-3": "data.batch_size=-3|at least 1",
    "data.num_workers=-1": "data.num_workers=-1|at least 0",
    "task.length=0": "length 0|at least 1",
    "task.n_symbols=1": "n_symbols 1|at least 2",
    "task=repeat task.seq_len=0": "seq_len 0|at least 1",
    "model.n_layers=2": "model.n_layers=2|model=attention",
    "model.architecture=nonsense": "model.architecture=nonsense|attention",
    "model.dropout=-0.1": "model.dropout=-0.1|at least 0",
    "model.dropout=1": "model.dropout=1.0|below 1",
    "model.dropout=nan": "model.dropout=nan",
    "model.token_init_std=-1": "model.token_init_std=-1.0|at least 0",
    "model.token_init_std=inf": "model.token_init_std=inf",
    "model.token_init=random": "model.token_init=random|normal, hashed, file",
    "model.token_init=file": "model.token_init=file|model.token_file=None",
    "model.token_file=rows.npy": "model.token_init=normal|model.token_file=rows.npy",
    "model.token_init=file model.token_file=nowhere.npy": "nowhere.npy does not exist|(65, 32)",
    "pos.init_std=-1": "pos|init_std -1",
    "optimizer.algorithm=sgd": "optimizer.algorithm=sgd|adam, adamw",
    "optimizer.decay=step": "optimizer.decay=step|none, linear, cosine",
    "optimizer.lr=0": "optimizer.lr=0.0|above 0",
    "optimizer.lr=-1": "optimizer.lr=-1.0|above 0",
    "optimizer.lr=nan": "optimizer.lr=nan",
    "optimizer.lr=inf": "optimizer.lr=inf",
    "optimizer.betas=[0.9]": "optimizer.betas=[0.9]|two numbers",
    "optimizer.betas=[0.9,1.0]": "optimizer.betas=[0.9, 1.0]|[0, 1)",
    "optimizer.weight_decay=-0.1": "optimizer.weight_decay=-0.1|at least 0",
    "optimizer.warmup_steps=-1": "optimizer.warmup_steps=-1|at least 0",
    "trainer.accelerator=cuda": "trainer.accelerator=cuda|auto, cpu, gpu",
    "trainer.strategy=deepspeed": "trainer.strategy=deepspeed|auto, ddp, fsdp",
    "trainer.precision=16": "trainer.precision=16|32, bf16",
    "trainer.progress_bar=maybe": "trainer.progress_bar=maybe|auto, true, false",
    "trainer.max_steps=0": "trainer.max_steps=0|at least 1|-1",
    "trainer.max_steps=-2": "trainer.max_steps=-2|at least 1|-1",
    "trainer.gradient_clip_norm=0": "trainer.gradient_clip_norm=0.0|above 0|null",
    "trainer.gradient_clip_norm=nan": "trainer.gradient_clip_norm=nan",
    "trainer.threads=0": "trainer.threads=0|auto",
    "trainer.threads=many": "trainer.threads=many|auto",
    "seed=-1": "seed=-1|2^32",
    "seed=4294967296": "seed=4294967296|2^32",
    "resume=yes": "resume=yes|auto",
    "sweep.on_invalid=stop": "sweep.on_invalid=stop|skip, fail",
    "diagnostics.heads.every=-1": "diagnostics.heads|every=-1|0 to switch it off",
    # more than any machine has, or than a computer counts with
    "data.num_workers=100000": "data.num_workers=100000|at most 256",
    "trainer.threads=1000000": "trainer.threads=1000000|at most 1024",
    "trainer=ddp trainer.devices=1000000": "trainer.devices=1000000|at most 256",
    "model.d_model=2147483647": "model.d_model=2147483647|at most 1048576",
    "data.batch_size=10000000000000": "a batch would take|PiB|data.batch_size=10000000000000",
    "data.val_examples=10000000000000": "the validation set would take|data.val_examples=10000000000000",
    "model=transformer model.n_layers=1000000000": "the model would take|model.n_layers=1000000000",
    "task.n_symbols=1000000000000": "the model would take|the vocabulary of 1000000000001",
    "diagnostics.lengths.lengths=[8] diagnostics.lengths.n_examples=1000000000000": "n_examples=1000000000000|length 8",
    f"data.batch_size=1{'0' * 400}": "data.batch_size|400 digits|2^63",
    "pos=t5 pos.max_distance=1000000000": "max_distance 1000000000|at most 1048576",
    "pos=t5 pos.n_buckets=2000 pos.max_distance=3000": "n_buckets 2000|at most 1024",
    "pos=fire pos.hidden=1000000": "hidden 1000000|at most 65536",
    "optimizer.lr=1e300": "optimizer.lr=1e+300|finite|1e+20",
    "optimizer.betas=[nan,0.5]": "optimizer.betas=nan|finite",
    "pos.init_std=nan": "pos.init_std=nan|finite",
    "pos=rope pos.base=inf": "pos.base=inf|finite",
    # a wrong type names the key and the value
    "model.d_model=wide": "model.d_model=wide|not a whole number",
    "data.batch_size=1.5": "data.batch_size=1.5|not a whole number",
    "optimizer.lr=fast": "optimizer.lr=fast|not a number",
    "optimizer.betas=3": "optimizer.betas|is a list",
    "logger.tensorboard=perhaps": "logger.tensorboard=perhaps|neither true nor false",
    "seed=true": "seed=True|not a whole number",
    "trainer.max_epochs=[1,2]": "trainer.max_epochs",
    "model.d_model=null": "model.d_model",
    "model.d_model=???": "no value for model.d_model",
    "task.length=long": "task.length|long",
    "task.length=2.5": "task.length|2.5",
    "pos.init_std=small": "pos.init_std|small",
    "diagnostics.heads.every=often": "diagnostics.heads.every|often",
    # a wrong key, and the nearest right one, with a plus and without
    "model.d_modle=64": "'model.d_modle'|'model.d_model'",
    "+model.d_modle=64": "'model.d_modle'|'model.d_model'",
    "++model.d_modle=64": "'model.d_modle'|'model.d_model'",
    "+model={d_modle:64}": "'model.d_modle'|'model.d_model'",
    "sed=1": "'sed'|'seed'",
    "+sed=1": "'sed'|'seed'",
    "d_model=64": "'d_model'|'model.d_model'",
    "+d_model=64": "'d_model'|'model.d_model'",
    "optimzer.lr=1": "optimzer|optimizer",
    "data.batchsize=4": "'data.batchsize'|'data.batch_size'",
    "trainer.max_step=4": "'trainer.max_step'|'trainer.max_steps'",
    "+optimizer.momentum=0.9": "'optimizer.momentum'|lr",
    "pos.init_sdt=1": "'pos.init_sdt'|'pos.init_std'",
    "+pos.init_sdt=1": "'pos.init_sdt'|'pos.init_std'",
    "pos.foo=1": "'pos.foo'|init_std",
    "+pos.foo=1": "'pos.foo'|init_std",
    "task.lenght=3": "'task.lenght'|'task.length'",
    "+task.lenght=3": "'task.lenght'|'task.length'",
    "diagnostics.heads.evry=3": "'diagnostics.heads.evry'|'diagnostics.heads.every'",
    "+diagnostics.heads.evry=3": "'diagnostics.heads.evry'|'diagnostics.heads.every'",
    "+foo=1": "'foo'|seed",
    "pos=none +pos.foo=1": "'pos.foo'|there are: none",
    # the owner fills these in: given by hand they would contradict it
    "+pos.d_model=64": "'pos.d_model'",
    # only classes of this package, and only of the right kind
    "pos._target_=torch.nn.Linear": "pos._target_=torch.nn.Linear|outside the package poslab",
    "task._target_=os.system": "task._target_=os.system|outside the package poslab",
    "diagnostics.heads._target_=builtins.exec": "diagnostics.heads._target_=builtins.exec|outside the package poslab",
    "++diagnostics.x._target_=os.system": "diagnostics.x._target_=os.system|outside the package poslab",
    "pos._target_=poslab_evil.Scheme": "poslab_evil.Scheme|outside the package poslab",
    "pos._target_=null": "pos._target_=None|outside the package poslab",
    "pos._target_=poslab.tasks.copy.CopyTask": "poslab.tasks.copy.CopyTask is not a PositionScheme",
    "task._target_=poslab.positions.none.NoPositions": "poslab.positions.none.NoPositions is not a Task",
    "task._target_=poslab.data.stream.np.save": "poslab.data.stream.np.save",
    "task._target_=poslab.system.files.write_atomically": "poslab.system.files.write_atomically is not a Task",
    "diagnostics.heads._target_=poslab.positions.none.NoPositions": "is not a Diagnostic",
    "pos._target_=poslab.positions.none.Nothing": "poslab.positions.none.Nothing does not exist",
    "pos._target_=poslab.positions.nowhere.Nothing": "poslab.positions.nowhere.Nothing does not exist",
    "~pos._target_": "pos|_target_|conf/pos",
    "diagnostics.heads=null": "diagnostics.heads|_target_|conf/diagnostics",
    "diagnostics.heads=3": "diagnostics.heads|_target_",
}


@pytest.mark.parametrize(("overrides", "parts"), RULES.items(), ids=list(RULES))
def test_a_broken_rule_is_named_in_one_line(overrides: str, parts: str, tmp_path: Path):
    line = refusal(tmp_path / "run", *overrides.split(" "))
    assert "\n" not in line
    assert "POSLAB_DEBUG" not in line, f"not a message for a person: {line}"
    assert all(part in line for part in parts.split("|")), line
    assert list(tmp_path.iterdir()) == [], "a refused configuration leaves nothing behind"


@pytest.mark.parametrize("group", GROUPS)
def test_an_unknown_choice_lists_the_choices(group: str, tmp_path: Path):
    line = refusal(tmp_path, f"{group}=zzz")
    assert line.startswith(f"unknown choice {group}=zzz; choices: ")
    listed = line.partition("choices: ")[2].split(", ")
    assert sorted(listed) == sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def test_a_near_choice_is_suggested(tmp_path: Path):
    assert "did you mean 'sinusoidal'?" in refusal(tmp_path, "pos=sinusiodal")


def test_several_values_without_m_are_refused_with_the_way_out(tmp_path: Path):
    line = refusal(tmp_path, "seed=0,1,2")
    assert "seed=0,1,2" in line
    assert "-m" in line


def test_the_rules_hold_for_any_way_to_a_configuration():
    # Not only for overrides: a configuration that was loaded from a file and changed is checked just the same.
    config = OmegaConf.create(OmegaConf.to_container(compose()))
    assert checked(config).model.n_heads == 4
    config.model.n_heads = 5
    with pytest.raises(ConfigError, match=r"model\.n_heads=5"):
        checked(config)
