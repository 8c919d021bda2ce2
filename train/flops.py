"""What a model costs: floating-point operations a token, MFU, and memory, before anything is run."""

from __future__ import annotations

import torch

from .fot import visible_contexts
from .loss import CHUNK_LOGITS
from .model import ModelConfig

# Dense bfloat16 peaks of one GPU, TFLOP/s, as their makers state them; looked up by the device's name.
PEAKS = {
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "B200": 2250.0,
    "A100": 312.0,
    "L40S": 362.0,
    "4090": 165.0,
}
ROUTING = 14  # c_r of Krajewski et al. 2024: what choosing an expert and moving a token there costs, in units of D
CONVENTION = "6 N + 12 layers heads head_size span (N: weights that multiply, span: keys, causal counted in full)"


def keys_seen(config: ModelConfig, length: int, memory: bool) -> float:
    """Keys a query is compared with, causal attention counted in full; the mean over contexts in FoT's memory layers."""
    if config.fot is None:
        return length
    size = config.fot.local_context
    if not memory:
        return size
    contexts = length // size
    return float(visible_contexts(contexts, config.fot.cross_batch_range, contexts).float().mean()) * size


def flops_per_token(config: ModelConfig, length: int, causal: bool = False) -> float:
    """Forward and backward, 6 N for the products with weights and 12 h d span for attention (PaLM, appendix B).

    causal: count only the pairs that are computed, half of a square; MFU as it is usually given counts all.
    """
    width = config.heads * config.head_size
    attention = 0.0
    for layer in range(config.layers):
        memory = config.fot is not None and layer in config.fot.layers
        span = keys_seen(config, length, memory)
        if causal:
            span -= (config.fot.local_context if config.fot else length) / 2
        attention += 12 * width * span
    mixing = 0
    if config.experts is not None and config.experts.routing == "mixture_of_tokens":
        mixing = 12 * len(config.experts.layers) * config.experts.count * config.hidden_size  # into mixtures, and back
    return 6 * config.matmul_parameters + attention + mixing


def scaling_law_flops_per_token(config: ModelConfig) -> float:
    """F / tokens = (12 D^2 c_f + D E c_r) n_blocks with c_f = 6, c_r = 14, E = G R experts (Krajewski et al. 2024, eq. 12).

    The form in which compute-optimal granularities are given: for blocks whose d_ff is 4 D, without attention and vocabulary,
    but with what routing costs beside the product with the router.
    """
    assert config.experts is not None
    blocks = len(config.experts.layers)
    dense = 12 * config.hidden_size**2 * 6 * config.layers
    return dense + config.hidden_size * config.experts.count * ROUTING * blocks


def peak_flops(device: torch.device, given_tflops: float | None) -> float | None:
    """FLOP/s of one device, or None where it is not known."""
    if given_tflops:
        return given_tflops * 1e12
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak * 1e12 for known, peak in PEAKS.items() if known in name), None)


def memory_bytes(
    config: ModelConfig,
    rows: int,
    length: int,
    ranks: int,
    compute_bytes: int,
    recompute: bool,
    context_size: int,
    expert_size: int = 1,
) -> dict[str, float]:
    """An estimate of one GPU's memory, bytes, by what it holds.

    State: 16 bytes a parameter (weight, gradient, two moments in float32) over the ranks. Activations of a block, in values a
    token: what enters its two norms and its four inner inputs (6 D), q, k, v and attention's output, and three of the MLP's
    hidden size, of an expert layer X and H alone, the router's logits in float32, and mixtures or tokens from other ranks;
    with recompute only D a block, and one block in full. Loss: one chunk of logits and its gradient. Experts at work: what a
    layer's products pass on, of one layer at a time.
    """
    tokens = rows * length / context_size
    inner = 6 * config.hidden_size + 2 * config.head_size * (config.heads + config.kv_heads) + 3 * config.mlp_size
    blocks, work = inner * config.layers, 0.0
    if config.experts is not None:
        experts, size = config.experts, config.mlp_size // config.experts.granularity
        of_expert = experts.computed * (experts.matrices - 1) * size
        work = experts.computed * (config.hidden_size + 2 * size) + of_expert
        of_expert += experts.count * 4 / compute_bytes
        if expert_size > 1 or experts.routing == "mixture_of_tokens":
            of_expert += experts.computed * config.hidden_size
        blocks += len(experts.layers) * (of_expert - 3 * config.mlp_size)
    kept = config.hidden_size * config.layers + inner if recompute else blocks
    cast = 0 if compute_bytes == 4 else compute_bytes * config.parameters / (config.layers if ranks > 1 else 1)
    chunk = min(CHUNK_LOGITS, int(tokens) * config.vocab_size)
    return {
        "weights, gradients, moments": 16.0 * config.parameters / ranks,
        "weights as computed with": cast,
        "activations": compute_bytes * tokens * kept,
        **({"experts at work": compute_bytes * tokens * work} if work else {}),
        "loss": chunk * (4.0 + 2 * compute_bytes) + 4.0 * config.vocab_size * config.hidden_size,
    }
