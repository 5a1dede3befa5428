"""Small tokenizers of each kind, built through the `tokenizers` library."""

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as NativeTokenizer

from tokenmill.text.tokenizer import Tokenizer

CHATML = ("<|im_start|>", "<|im_end|>", "<s>")
MARK = "▁"


def wrap(native, *, bos=None, add_bos=False, eos=()):
    """A `Tokenizer` over a native one; tokens are given by their text."""
    ids = {token: native.token_to_id(token) for token in (bos, *eos) if token}
    return Tokenizer(
        native,
        bos_token_id=ids.get(bos),
        add_bos=add_bos,
        eos_token_ids=frozenset(ids[token] for token in eos),
        special_tokens={"bos_token": bos} if bos else {},
    )


def byte_level(*, special=CHATML, merges=(("Ġ", "t"), ("h", "e"), ("ð", "Ł"), ("i", "m"))):
    """One token per byte (id = place in the alphabet), a few merges, then control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate(alphabet)}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    native = NativeTokenizer(models.BPE(vocab, list(merges)))
    native.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    native.decoder = decoders.ByteLevel()
    native.add_special_tokens(list(special))
    native.add_tokens(
        [AddedToken("<think>", normalized=False), AddedToken("tab \n", special=False)]
    )
    return native


def byte_fallback(*, special=CHATML, prefix="metaspace_first", strip=True):
    """SentencePiece-like BPE: characters, words with the space mark, a token for each byte."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [MARK, *"abcdefghijklmnopqrstuvwxyz<>|_/ABCDEFGHIJKLMNOPQRSTUVWXYZ!,:.é"]
    merges = [(MARK, "h"), (MARK + "h", "i"), (MARK, "a"), ("i", "m")]
    pieces += [left + right for left, right in merges]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    native = NativeTokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if prefix == "metaspace_first":
        native.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
    else:
        native.normalizer = normalizers.Sequence(
            [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
        )
    links = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    native.decoder = decoders.Sequence([*links, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    native.add_special_tokens([AddedToken("<unk>", normalized=False, special=True), *special])
    native.add_tokens([AddedToken("x y", normalized=True)])
    return native


def unigram(*, special=("</s>", "<unk>")):
    """A Unigram model whose vocabulary holds its control tokens as plain entries."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), (MARK, -3.0), (MARK + "hi", -1.0)]
    pieces += [(letter, -4.0) for letter in "abcdefghijklmnopqrstuvwxyz</>|_"]
    native = NativeTokenizer(models.Unigram(pieces, unk_id=0))
    native.pre_tokenizer = pre_tokenizers.Metaspace(MARK)
    native.decoder = decoders.Metaspace(MARK)
    native.add_special_tokens(list(special))
    return native


def word_piece(*, cleanup=True):
    pieces = [
        "[UNK]",
        "[CLS]",
        "hello",
        "##ing",
        "##'s",
        "!",
        ",",
        ".",
        "don",
        "'",
        "n't",
        "##.",
        "do",
        "not",
    ]
    native = NativeTokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    native.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    native.decoder = decoders.WordPiece("##", cleanup)
    native.add_special_tokens(["[UNK]", "[CLS]"])
    return native


def with_decoder(decoder, pieces):
    """A vocabulary of just these pieces, with one control token, and that decoder."""
    native = NativeTokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token="a"))
    if decoder is not None:
        native.decoder = decoder
    native.add_special_tokens(["<s>"])
    return native


_BYTES = [f"<0x{byte:02X}>" for byte in (0x0A, 0x41, 0xC3, 0xA9, 0xF0, 0x9F, 0x94, 0xA5)]
_PIECES = [
    "a",
    MARK,
    MARK + MARK,
    MARK + "b",
    "c" + MARK + "d",
    "</w>",
    "e</w>",
    " ",
    "  f ",
    "|",
    "é",
]
_CLEANED = "x . ? ! , ' y n't 'm do not 's 've 're"
PIECES = [*_PIECES, "<0x+5>", "<0xg0>", "n't", " ,", "<pad>", "aa", "##g", _CLEANED, *_BYTES]

DECODERS = {
    "none": None,
    "replace": decoders.Replace(MARK, " "),
    "replace_regex": decoders.Replace(Regex("a|[▁ ]+"), "-"),
    "byte_fallback": decoders.ByteFallback(),
    "fuse": decoders.Fuse(),
    "strip_each": decoders.Strip(" ", 2, 0),
    "metaspace": decoders.Metaspace(MARK),
    "metaspace_never": decoders.Metaspace(MARK, "never"),
    "word_piece": decoders.WordPiece("##", True),
    "word_piece_raw": decoders.WordPiece("##", False),
    "bpe": decoders.BPEDecoder("</w>"),
    "ctc": decoders.CTC("<pad>", "|", True),
    "ctc_raw": decoders.CTC("<pad>", "|", False),
    "byte_level_pieces": decoders.ByteLevel(),
    "nested": decoders.Sequence(
        [
            decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback()]),
            decoders.Fuse(),
            decoders.Strip(" ", 2, 0),
            decoders.Replace("é", "ee"),
        ]
    ),
    "metaspace_of_bytes": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(MARK)]),
    "metaspace_of_all": decoders.Sequence([decoders.Fuse(), decoders.Metaspace(MARK)]),
    "bpe_fuse": decoders.Sequence([decoders.BPEDecoder("</w>"), decoders.Fuse()]),
    "ctc_fuse": decoders.Sequence([decoders.CTC("<pad>", "|", False), decoders.Fuse()]),
    "byte_level_strip": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]),
}
