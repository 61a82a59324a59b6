"""Generate the answer of a run's model to a prompt, token by token.

python generate.py run=outputs/runs/NAME                        for an example of the run's task
python generate.py run=outputs/runs/NAME prompt="3 1 4 1 5 9"   for these tokens
"""

import sys
import time
from typing import Any

from poslab.cli.arguments import MOST_SEED, Option, command, number, switch, whole
from poslab.errors import ConfigError
from poslab.system.startup import quick_imports

OPTIONS = {
    "run": Option("folder of a run or of a sweep's job; latest: the newest in outputs/runs"),
    "prompt": Option('tokens separated by spaces, in double quotes: prompt="3 1 4"; default: an example of the task'),
    "max_new_tokens": Option("number of tokens to generate; default: the whole answer", whole(1)),
    "checkpoint": Option("last (default), best, step_<n>, or a file", str, "last"),
    "context": Option("extend the context to so many tokens, if the position scheme has no limit", whole(1)),
    "cache": Option("false: read the whole sequence again for each token; the same answer, slower", switch, True),
    "temperature": Option("0 (default): always the most likely token; above 0: draw", number, 0.0),
    "top_k": Option("draw only among so many most likely tokens", whole(1)),
    "seed": Option("seed of the draws, and of the example without a prompt; default 0", whole(0, MOST_SEED), 0),
    "device": Option("auto (default): an accelerator if there is one; or cpu, cuda, ...", str, "auto"),
}


def main(values: dict[str, Any]) -> None:
    # Imported here, so that a mistyped argument is reported without importing torch.
    from poslab.trained import choose_device, find_checkpoint, find_run, in_precision, load

    folder = find_run(values["run"])
    checkpoint = find_checkpoint(folder, values["checkpoint"])
    with quick_imports():
        import numpy as np
        import torch

        from poslab.evaluation.generation import example_prompt, generate, true_answer
        from poslab.system.threads import choose_threads
    job, task, model = load(folder, checkpoint)
    device = choose_device(values["device"])
    torch.set_num_threads(choose_threads(job.trainer.threads, 1, task.seq_len, job.model.d_model))
    if values["prompt"] is None:
        prompt = example_prompt(task, values["seed"])
    else:
        prompt = task.prompt(task.encode(values["prompt"]))
    n_new = values["max_new_tokens"] or task.answer_length(prompt)
    if n_new < 1:
        raise ConfigError("the prompt contains its whole answer; give other tokens, or max_new_tokens=")
    if values["context"]:
        if values["context"] < model.max_context_length:
            raise ConfigError(
                f"context={values['context']} is below the model's context of {model.max_context_length}; leave it out"
            )
        model = model.extended(values["context"])
    tokens = generate(
        model.to(device),
        torch.from_numpy(prompt)[None].to(device),
        n_new,
        use_cache=values["cache"],
        temperature=values["temperature"],
        top_k=values["top_k"],
        seed=values["seed"],
    )

    say(f"run     {folder}, checkpoint {checkpoint.stem}\n")
    say(f"prompt  {' '.join(task.token_label(int(token)) for token in prompt)}\n")
    say("answer ")
    answer = []
    began = time.perf_counter()
    with in_precision(job.trainer.precision, device):
        for token in tokens:
            answer.append(int(token))
            say(f" {task.token_label(answer[-1])}")
    milliseconds = 1000 * (time.perf_counter() - began) / len(answer)
    say("\n")

    truth = true_answer(task, prompt, n_new)
    if not truth:
        say("done    the task expects nothing more after this prompt\n")
        return
    right = int(np.sum(np.array(answer[: len(truth)]) == truth))
    if right == len(truth):
        say(f"right   all {right} tokens\n")
    else:
        expected = " ".join(map(task.token_label, truth))
        say(f"wrong   {right} of {len(truth)} tokens are right; the answer is {expected}\n")
    whole_answer = len(prompt) + task.answer_length(prompt) - 1
    trained = sorted({task.seq_len_at(length) for length in task.lengths})
    if right < len(truth) and whole_answer not in trained:
        seen = " to ".join(map(str, dict.fromkeys((trained[0], trained[-1]))))
        say(f"note    this is a sequence of T = {whole_answer} tokens, and training saw T = {seen}\n")
    say(f"time    {milliseconds:.2f} ms a token {'with' if values['cache'] else 'without'} the cache\n")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    command(main, __doc__, OPTIONS)
