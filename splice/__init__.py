"""SPLiCe: structured packing for long context (the data side).

documents -> neighbours -> examples -> dataset; `splice build` runs it all. Heavy imports are made where they are used.
"""

__version__ = "0.1.0"
