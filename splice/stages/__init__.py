"""The stages, one module each: `run(args, directory, threads) -> receipt`, plain functions without Beam.

read      a unit of a source      -> documents that pass the filters (Arrow), their keys, what was refused, quarantine
centroids samples of what is read -> clusters of documents, where packs go by them
cluster   a read file             -> the cluster of each of its documents
assign    all keys                -> duplicates found, each document's pack, which are the tokenizer's sample
gather    a part of a pack        -> its documents with their text (Arrow), those of the sample
tokenizer the sample              -> the LM tokenizer, trained or given, proven equal to its reference
tokenise  a part of a pack        -> its documents' tokens (Arrow), and the table of what a dataset keeps of each
embed     a block of a pack       -> its documents' embeddings
index     a pack                  -> the retriever's index
search    a block of a pack       -> its documents' neighbours (Parquet)
plan      a pack                  -> Algorithm 2's plan (Parquet)
lay       a pack                  -> its examples one by one, where there are many packs
write     a shard                 -> examples (Parquet)
"""
