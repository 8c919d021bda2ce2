"""Mixture-of-experts layers, a file a way of choosing who computes what.

token_choice.py         a token takes its best k experts (Switch, top-k)
expert_choice.py        an expert takes its best tokens, of those at one position of several sequences
mixture_of_tokens.py    an expert takes a mixture of such a group
threshold.py            slices of a dense layer, each on where its gate is (DSMoE)

config.py               the sizes and choices of a model's expert layers
resolve.py              from settings to a config, and every mistake in them
layer.py                the layer that a config asks for
router.py               the scores, in float32
weights.py              the experts' matrices, and all of them at work (kernels/)
exchange.py             experts on several ranks: tokens travel by all-to-all
starts.py               other models' weights as first values: slices of dense ones, controllers as routers
record.py               what a layer tells of a forward pass
tally.py                records of a step, summed up for the log
"""
