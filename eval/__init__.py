"""The evaluations: long prompts whose prefix is read once, scored honestly, on our checkpoints or any causal LM."""
