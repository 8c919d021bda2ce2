"""The trainer: a Llama model, context extension and FoT, the loop, checkpoints and export."""
