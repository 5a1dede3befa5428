"""Words to tokens and back: tokenizer, chat template, incremental detokenizer, stop texts."""
