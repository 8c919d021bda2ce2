"""Expert layers on a GPU: what they compute on a CPU, without a wait for the device."""

import copy
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from splice.train.experts.config import Experts
from splice.train.model import Llama, ModelConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

CONFIG = ModelConfig(257, 64, 2, 4, 2, 32, 128, 128)
ROUTINGS = {
    "token choice": Experts("token_choice", 4, 2, (0, 1), 4, z=1e-3),
    "capacity": Experts("token_choice", 2, 2, (1,), 2, capacity=0.8),
    "expert choice": Experts("expert_choice", 2, 2, (0, 1), 2, group=4, balance=0.0),
    "mixture of tokens": Experts("mixture_of_tokens", 2, 2, (0, 1), 2, group=4, balance=0.0),
    "threshold": Experts("threshold", 4, 1, (0, 1), 4, sparsity=0.1, balance=0.0),
    "gelu": Experts("token_choice", 4, 2, (0, 1), 4, activation="gelu"),
}


def gradients(model, device):
    ids = torch.randint(257, (4, 128), generator=torch.Generator().manual_seed(0)).to(device)
    loss = model(ids, ids)
    loss.backward()
    return {"loss": loss.detach().cpu()} | {name: p.grad.cpu() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", ROUTINGS)
def test_a_step_is_that_of_the_cpu(name, randomised, agree):
    model = randomised(Llama(replace(CONFIG, experts=ROUTINGS[name])))
    there = copy.deepcopy(model).cuda()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    got, wanted = gradients(there, "cuda"), gradients(model, "cpu")
    torch.set_float32_matmul_precision(before)
    for which, value in wanted.items():
        agree(got[which], value, 1e-3)


@pytest.mark.parametrize("name", ROUTINGS)
def test_layers_do_not_wait_for_the_device(name, randomised):
    model = randomised(Llama(replace(CONFIG, experts=ROUTINGS[name]), torch.bfloat16)).cuda()
    layer = model.model.layers[1].mlp
    x = torch.randn(4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def run():
        out, record = layer(x)
        (out.float().square().sum() + record.loss).backward()

    run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
