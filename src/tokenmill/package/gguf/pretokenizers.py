"""How byte-level vocabularies split text before merging, by `tokenizer.ggml.pre`: a table."""

from __future__ import annotations

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to split.

    Attributes:
        patterns: each splits the pieces that the one before left; matches become pieces.
        digits: digits stand alone, split off before the patterns.
        nfc: text is normalised to NFC first.
        ignore_merges: a piece that is a token needs no merges.
        add_bos: a text begins with BOS where the file does not say.
    """

    patterns: tuple[str, ...]
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def steps(self) -> list[dict[str, object]]:
        """Returns the entries of a `Sequence` pre-tokenizer of `tokenizer.json`."""
        steps: list[dict[str, object]] = []
        if self.digits:
            steps.append({"type": "Digits", "individual_digits": True})
        # ByteLevel has the GPT-2 pattern built in, faster than a Split.
        own = self.patterns == (_GPT2,)
        if not own:
            steps += [
                {
                    "type": "Split",
                    "pattern": {"Regex": pattern},
                    "behavior": "Isolated",
                    "invert": False,
                }
                for pattern in self.patterns
            ]
        steps.append(
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": own}
        )
        return steps


_GPT2_STYLE = PreTokenizer((_GPT2,))
_DIGITS_STYLE = PreTokenizer((_GPT2,), digits=True)
_LLAMA3_STYLE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_STYLE = PreTokenizer((_QWEN2,), nfc=True)

PRE_TOKENIZERS = {
    "default": _GPT2_STYLE,
    "gpt-2": _GPT2_STYLE,
    "gpt2": _GPT2_STYLE,
    "olmo": _GPT2_STYLE,
    "phi-2": _GPT2_STYLE,
    "smollm": _DIGITS_STYLE,
    "starcoder": _DIGITS_STYLE,
    "refact": _DIGITS_STYLE,
    "codeshell": _DIGITS_STYLE,
    "command-r": _DIGITS_STYLE,
    "llama-bpe": _LLAMA3_STYLE,
    "llama3": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "qwen2": _QWEN2_STYLE,
    "deepseek-r1-qwen": _QWEN2_STYLE,
}
"""`tokenizer.ggml.pre` to its entry."""

FALLBACK = "gpt-2"
"""What a file without `tokenizer.ggml.pre` gets, with a warning."""
