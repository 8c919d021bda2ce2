"""The kernels of mixture-of-experts layers, behind three functions.

    route     logits -> which experts a token goes to, with which weights                     route.py
    schedule  assignments -> who computes what in which order, from both sides                schedule.py
    experts   tokens x expert weights -> outputs; keeps X and H alone for the backward pass   experts.py

Each is one operator to torch.compile and has two implementations: plain torch (plain.py, CPU) and Triton (gpu/).
rows.py gathers and sums rows where tokens travel between ranks. grouped.py is `experts` by torch's grouped_mm, to compare with.
"""

from .backend import Backend, default_backend
from .experts import ACTIVATIONS, experts
from .route import Routes, route
from .rows import combine, gather
from .schedule import Schedule, schedule

__all__ = [
    "ACTIVATIONS",
    "Backend",
    "Routes",
    "Schedule",
    "combine",
    "default_backend",
    "experts",
    "gather",
    "route",
    "schedule",
]
