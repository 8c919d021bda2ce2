"""Mixture-of-experts layers: what is chosen by whom, a file a way of choosing.

config.py               the sizes and choices of a model's expert layers
weights.py              the experts' matrices, and all of them at work (kernels/)
token_choice.py         a token takes its best k experts (Switch, top-k)
expert_choice.py        an expert takes its best tokens, of those at one position of several sequences
mixture_of_tokens.py    an expert takes a mixture of such a group
threshold.py            slices of a dense layer, each on where its gate is (DSMoE)
record.py               what a layer tells of a forward pass
exchange.py             experts on several ranks: tokens travel by all-to-all
layer.py                the one that a config asks for
starts.py               other models' weights as a first value: slices of dense ones, controllers as routers
"""
