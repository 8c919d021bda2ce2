"""The stages, one module each: `run(args, directory, threads) -> receipt`, plain functions without Beam.

read      a unit of a source      -> documents that pass the filters (Arrow), what was refused, quarantine
assign    all read receipts       -> duplicates found, each document's pack, the sample for the tokenizer
gather    a part of a pack        -> its documents with their text (Arrow)
tokenizer the sample              -> the LM tokenizer, trained or given, proven equal to its reference
tokenise  a part of a pack        -> its documents' tokens (Arrow), and the table of what a dataset keeps of each
embed     a block of a pack       -> its documents' embeddings
index     a pack                  -> the retriever's index
search    a block of a pack       -> its documents' neighbours (Parquet)
plan      a pack                  -> Algorithm 2's plan (Parquet)
write     a shard                 -> examples (Parquet)
"""
