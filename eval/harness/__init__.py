"""The engine as a model of lm-evaluation-harness: MMLU, GSM8K and the rest, with every prefix that prompts share read once.

    requests  ->  ids  ->  runs of contexts with a common prefix (share.py)  ->  the reader  ->  answers

The ids are those of lm-eval's own `hf` model (the tokenizer is transformers'), and so are the answers: log-likelihoods but for
rounding, greedy flags, generated text. Two things differ. A prompt over the model's context is an error, where `hf` cuts it on the
left; and only greedy decoding is done. With FoT a prompt's prefix lies in the memory, which `hf` does not have.

    splice eval harness --model M --tasks mmlu,gsm8k --num-fewshot 5 --output DIR     results as of every evaluation
    python -m splice.eval.harness --model splice --model_args pretrained=M ...        lm-eval's own command line
"""

from .model import SpliceLM
from .run import find_tasks, open_tasks, run_harness

__all__ = ["SpliceLM", "find_tasks", "open_tasks", "run_harness"]
