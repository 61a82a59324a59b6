"""What people could type behind ``train.py``, ``evaluate.py`` and ``generate.py``: hypothesis strategies for it.

The keys and choices are read from ``conf/``, so that new ones are typed as well. Most lines are nearly right: a person
who mistypes one word has the others right. Where a size is not what a line is about, it is forced to be small.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml
from hypothesis import strategies as st
from odd_words import FLAGS, FOLDERS, HUGE, HYDRA, SIZES, STRANGE

from support.paths import CONF

SMALL = (
    "trainer.max_steps=2",
    "data.batch_size=2",
    "data.val_examples=3",
    "data.val_batch_size=2",
    "diagnostics=none",
    "logger=none",
)
"""Before everything else, so that whatever a line says of them counts."""

# Starting the processes of ddp takes longer than a hundred other lines; the tests of ddp do it.
LEFT_OUT = ("trainer=ddp", "trainer.strategy=ddp")
# The other experiments are sweeps of minutes.
EXPERIMENTS = ("lesson", "positions/nowhere")
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra")


def flat(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@cache
def choices(group: str) -> list[str]:
    paths = (CONF / group).rglob("*.yaml")
    return sorted(path.relative_to(CONF / group).with_suffix("").as_posix() for path in paths)


@cache
def settings() -> list[tuple[str, Any, str]]:
    """Every key with its default, and the choice that has it, as it is typed; empty for those that are always there."""
    main = yaml.safe_load((CONF / "train.yaml").read_text(encoding="utf-8"))
    found = [(key, value, "") for key, value in flat({key: one for key, one in main.items() if key != "defaults"})]
    for group in GROUPS:
        if group == "experiment":
            continue
        for choice in choices(group):
            content = yaml.safe_load((CONF / group / f"{choice}.yaml").read_text(encoding="utf-8")) or {}
            content = {key: value for key, value in content.items() if key != "defaults"}
            found += [(f"{group}.{key}", value, f"{group}={choice}") for key, value in flat(content)]
    return found


def typed(value: Any) -> str:
    return "null" if value is None else str(value).replace(" ", "")


def values(default: Any, key: str) -> st.SearchStrategy[str]:
    """Texts for a key: of its kind and small, at a border, absurd, or of another kind."""
    leaf = key.rpartition(".")[2]
    near: list[Any] = [default, default]
    if isinstance(default, bool):
        near += [True, False]
    elif isinstance(default, int) or default is None or leaf == "threads":
        near += [0, -1, *SIZES]
    elif isinstance(default, float):
        near += [0, 1, 0.5, 1e-3, 2, -1, 1e-300]
    elif isinstance(default, list):
        near += [[0.5, 0.9], [0, 0], [1, 1], [0.9], [0.1, 0.2, 0.3], [-1, 0.5], "[nan,0.5]"]
    else:
        near += ["none", "auto", "random", "normal", "hashed", "file", "linear", "cosine", "32", "bf16", "16", "all"]
        near += ["ends", "adam", "adamw", "attention", "transformer", "latest", "skip", "fail", "stop"]
        near += [default] * len(near)
    absurd = [*HUGE, *(-huge for huge in HUGE[:3]), 1e20, 1e38, 1e300, -1e300]
    return st.one_of(
        *[st.sampled_from([typed(value) for value in near])] * 6,
        st.sampled_from([typed(value) for value in absurd]),
        st.sampled_from(STRANGE),
    )


@st.composite
def a_setting(draw: st.DrawFn, sweep: bool = False) -> list[str]:
    """``key=value``, and the choice that has the key before it."""
    # One of each group's keys, so that the many of a few groups do not crowd out the others.
    by_group: dict[str, list[tuple[str, Any, str]]] = {}
    for one in settings():
        by_group.setdefault(one[0].partition(".")[0], []).append(one)
    key, default, choice = draw(st.sampled_from(by_group[draw(st.sampled_from(sorted(by_group)))]))
    kind = values(default, key)
    text = ",".join(draw(st.lists(kind, min_size=2, max_size=3))) if sweep else draw(kind)
    words = [f"{key}={text}"]
    if choice and draw(st.integers(0, 9)):
        words.insert(0, choice)
    return words


@st.composite
def a_choice(draw: st.DrawFn, sweep: bool = False) -> list[str]:
    """A group and what is chosen of it, there or not."""
    group = draw(st.sampled_from(GROUPS))
    there = st.sampled_from(EXPERIMENTS if group == "experiment" else choices(group))
    wrong = st.sampled_from(
        ["null", "", "nowhere", "[]", "../train", "3", "a/b", "none,null", "{a:1}", "learnd", "copy"]
    )
    text = draw(st.one_of(*[there] * 5, wrong))
    if sweep:
        text = f"{text},{draw(there)}"
    elif group == "diagnostics" and draw(st.booleans()):
        text = f"[{text},{draw(there)}]"
    return [f"{group}={text}"]


@st.composite
def a_slip(draw: st.DrawFn) -> list[str]:
    """A setting or choice with a letter too few, too many or wrong, without a value, or with ``+``, ``++``, ``~``."""
    word = draw(st.one_of(a_setting(), a_choice()))[-1]
    key, equals, value = word.partition("=")
    match draw(st.integers(0, 7)):
        case 0:
            at = draw(st.integers(0, max(0, len(key) - 1)))
            key = key[:at] + key[at + 1 :]
        case 1:
            at = draw(st.integers(0, len(key)))
            key = key[:at] + draw(st.sampled_from("aeox._-/ @:$é")) + key[at:]
        case 2:
            key = key.rpartition(".")[2]
        case 3:
            equals = draw(st.sampled_from(["", " = ", "==", ":", "=="]))
        case 4:
            return [f"~{key}"]
        case 5:
            key = key.rpartition(".")[0] or key
        case _:
            key = draw(st.sampled_from(["+", "++", "~", "-", "@", "+++"])) + key
    return [f"{key}{equals}{value}"]


@st.composite
def of_hydra(draw: st.DrawFn) -> list[str]:
    key = draw(st.sampled_from([*HYDRA, *HYDRA[:2] * 6]))
    text = draw(
        st.sampled_from(FOLDERS if "dir" in key else [*STRANGE, "grid", "basic", "disabled", "none", "MULTIRUN"])
    )
    return [f"{key}={text}"]


RAW = st.text(st.sampled_from("abdelmnops0123456789.=,+~-_[]{}()'\"$:/\\ *?!@#%&|<>;é\n\t"), min_size=0, max_size=12)


@st.composite
def train_lines(draw: st.DrawFn) -> list[str]:
    """What is typed behind ``train.py``."""
    sweep = draw(st.integers(0, 9)) == 9
    parts = st.one_of(
        a_setting(sweep=sweep),
        *[a_setting()] * 8,
        a_choice(sweep=sweep),
        *[a_choice()] * 4,
        a_slip(),
        a_slip(),
        of_hydra(),
        RAW.map(lambda text: [text]),
    )
    words = [word for part in draw(st.lists(parts, min_size=1, max_size=4)) for word in part]
    words = [word for word in words if word not in LEFT_OUT]
    # Last where hypothesis shrinks to: most lines have none of these.
    if draw(st.integers(0, 19)) == 19:
        words.append("resume=auto")
    if len(words) > 1 and draw(st.integers(0, 19)) == 19:
        words.append(words[0])
    if draw(st.integers(0, 14)) == 14:
        words += draw(st.sampled_from(FLAGS))
    return ["-m", *SMALL, *words] if sweep else [*SMALL, *words]


def user_lines(program: str) -> st.SearchStrategy[list[str]]:
    """What is typed behind a command that uses a run, in a folder with one in ``outputs/runs/one``."""
    nothing: list[str] = []
    number = [
        "0",
        "1",
        "2",
        "3",
        "5",
        "7",
        "-1",
        "1.5",
        "0.5",
        "nan",
        "inf",
        "1e3",
        "1e300",
        "9" * 19,
        "9" * 5000,
        "x",
        " ",
    ]
    run = st.sampled_from(
        [["run=outputs/runs/one"]] * 12
        + [["run=latest"], ["run=outputs/runs/on"], ["run=nowhere"], ["run=file"], ["run=empty"], ["run="], nothing]
        + [
            ["run=" + "x" * 300],
            ["run=\udcff"],
            ["run=outputs"],
            ["run=outputs/runs"],
            ["run=one"],
            ["run=\n"],
            ["run=/dev/null"],
        ]
    )
    checkpoint = ["last", "best", "file", "bad.ckpt", "nowhere", "", "x" * 300, "empty", "/dev/null", "\udcff"]
    texts = {
        "checkpoint": checkpoint,
        "device": ["auto", "cpu", "cuda", "meta", "cpu:9", "gpu", "", "mps", "cuda:99", "privateuseone", "é"],
        "seed": [*number, "4294967295", "4294967296"],
    }
    if program == "evaluate.py":
        texts |= {
            "lengths": ["1", "4,5", "6", "[2,3]", "0", "-1", "1,,2", "x", "99999", "9" * 18, "", "[", "6,6,6"],
            "examples": number,
            "output": [
                "scores.json",
                "new/scores.json",
                "file/x",
                "empty",
                "x" * 300,
                "\udcff",
                "",
                "two words",
                "pipe",
            ],
        }
    else:
        texts |= {
            "prompt": [
                "3 1 4",
                "3",
                "63 0 SEP",
                "SEP",
                "64",
                "x",
                "-1",
                "",
                "é",
                "3 " * 400,
                "1 2 3 4 5 6",
                "3,1",
                "\n",
            ],
            "max_new_tokens": number,
            "context": [*number, "12", "40", "99999"],
            "cache": ["true", "false", "maybe", "1", ""],
            "temperature": number,
            "top_k": number,
        }
    pair = st.sampled_from(sorted(texts)).flatmap(
        lambda key: st.sampled_from(texts[key]).map(lambda text: f"{key}={text}")
    )
    odd = st.one_of(RAW, st.sampled_from(["--help", "-h", "--foo", "run=latest", "sed=1", "lenghts=3", "+seed=1"]))
    words = st.lists(st.one_of(pair, pair, pair, pair, odd), max_size=3)
    return st.builds(lambda first, rest: [*first, *rest], run, words)
