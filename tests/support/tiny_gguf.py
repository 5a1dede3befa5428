"""Tiny GGUF files with random weights, and a plain NumPy model of what they compute."""

import gguf
import numpy as np

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, CONTEXT = 64, 2, 4, 2, 96, 64
HEAD_DIM = HIDDEN // HEADS
EPSILON, THETA = 1e-5, 10000.0


def vocabulary():
    """256 byte tokens, one merge and two control tokens: 259 entries, padded to 288."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    tokens = [chr(b) if b in printable else chr(next(rest)) for b in range(256)]
    tokens += ["th", "<|end|>", "<|start|>"]
    types = [1] * 257 + [3, 3]
    for i in range(288 - len(tokens)):
        tokens.append(f"[PAD{i}]")
        types.append(5)
    return tokens, types


def random_weights(rng, *, bias):
    """Tensor name to float32 array, as GGUF names them."""

    def normal(*shape):
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    weights = {"token_embd.weight": normal(288, HIDDEN), "output_norm.weight": 1 + normal(HIDDEN)}
    sizes = {"attn_q": HIDDEN, "attn_k": KV_HEADS * HEAD_DIM, "attn_v": KV_HEADS * HEAD_DIM}
    for i in range(LAYERS):
        block = {f"{name}.weight": normal(size, HIDDEN) for name, size in sizes.items()}
        if bias:
            block |= {f"{name}.bias": normal(size) for name, size in sizes.items()}
        block |= {
            "attn_norm.weight": 1 + normal(HIDDEN),
            "ffn_norm.weight": 1 + normal(HIDDEN),
            "attn_output.weight": normal(HIDDEN, HIDDEN),
            "ffn_gate.weight": normal(FFN, HIDDEN),
            "ffn_up.weight": normal(FFN, HIDDEN),
            "ffn_down.weight": normal(HIDDEN, FFN),
        }
        weights |= {f"blk.{i}.{name}": value for name, value in block.items()}
    return weights


def sentence_piece_vocabulary():
    """Tokens, scores and types of a SentencePiece vocabulary with byte fallback, padded to 288."""
    tokens, scores, types = ["<unk>", "<s>", "</s>"], [0.0] * 3, [2, 3, 3]
    tokens += [f"<0x{b:02X}>" for b in range(256)]
    scores += [0.0] * 256
    types += [6] * 256
    pieces = ["\u2581t", "he", "\u2581the", "\u2581", "t", "h", "e", "l", "o", "lo"]
    tokens += pieces
    scores += [-float(rank) for rank in range(len(pieces))]
    types += [1] * len(pieces)
    for i in range(288 - len(tokens)):
        tokens.append(f"[PAD{i}]")
        scores.append(-1000.0)
        types.append(5)
    return tokens, scores, types


def add_tokenizer(writer, model):
    if model == "llama":
        tokens, scores, types = sentence_piece_vocabulary()
        writer.add_token_scores(scores)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
    else:
        tokens, types = vocabulary()
        writer.add_tokenizer_pre("default")
        writer.add_token_merges(["t h"])
        writer.add_eos_token_id(257)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)


def write_tiny_gguf(
    path,
    *,
    architecture="llama",
    quant="F32",
    seed=0,
    drop=(),
    template=None,
    tokenizer="gpt2",
    tied=True,
    quants=(),
    extra=(),
    metadata=(),
):
    """Writes the file and returns the weights as the file holds them, dequantised.

    Args:
        path, architecture, seed: as they say.
        quant: the kind of every matrix.
        drop: names of tensors to leave out.
        template: the chat template.
        tokenizer: "gpt2" or "llama".
        tied: without a head of its own.
        quants: mapping of a part of a tensor's name to another kind for it.
        extra: mapping of further tensors.
        metadata: mapping of further keys to a string, an integer or a float.
    """
    rng = np.random.default_rng(seed)
    weights = random_weights(rng, bias=architecture == "qwen2")
    if not tied:
        weights["output.weight"] = (rng.standard_normal((288, HIDDEN)) * 0.2).astype(np.float32)
    weights |= dict(extra)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(THETA)
    add_tokenizer(writer, tokenizer)
    for key, value in dict(metadata).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](key, value)
    if template is not None:
        writer.add_chat_template(template)
    held = {}
    for name, value in weights.items():
        if name in drop:
            continue
        own = [other for part, other in dict(quants).items() if part in name]
        kind = gguf.GGMLQuantizationType[own[0] if own else quant]
        if value.ndim == 2 and kind.name != "F32":
            raw = gguf.quants.quantize(value, kind)
            writer.add_tensor(name, raw, raw_dtype=kind)
            held[name] = gguf.quants.dequantize(raw, kind).reshape(value.shape)
        else:
            writer.add_tensor(name, value)
            held[name] = value
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def numpy_logits(weights, ids, *, architecture="llama", frequency_divisor=1.0, window=None):
    """Float64 logits [n, 288] of a whole text; rotary as GGUF's architecture lays it out."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    n = len(ids)
    x = w["token_embd.weight"][ids]
    frequencies = THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM) / frequency_divisor
    angle = np.outer(np.arange(n), frequencies)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def norm(v, scale):
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + EPSILON) * scale

    def rotate(v):
        if architecture == "llama":  # neighbouring pairs
            a, b = v[..., 0::2], v[..., 1::2]
            out = np.empty_like(v)
            out[..., 0::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
            return out
        a, b = np.split(v, 2, axis=-1)  # halves
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    for i in range(LAYERS):
        block = {k.removeprefix(f"blk.{i}."): v for k, v in w.items() if k.startswith(f"blk.{i}.")}

        def linear(v, name, block=block):
            return v @ block[f"{name}.weight"].T + block.get(f"{name}.bias", 0.0)

        def heads(v, name, count, block=block):
            v = v.reshape(n, count, HEAD_DIM)
            return norm(v, block[name]) if name in block else v

        h = norm(x, block["attn_norm.weight"])
        q = rotate(heads(linear(h, "attn_q"), "attn_q_norm.weight", HEADS))
        k = rotate(heads(linear(h, "attn_k"), "attn_k_norm.weight", KV_HEADS))
        v = linear(h, "attn_v").reshape(n, KV_HEADS, HEAD_DIM)
        k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD_DIM)
        seen = np.tri(n, dtype=bool)
        if window is not None:
            seen &= ~np.tri(n, k=-window, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        x = x + linear(np.einsum("hqk,khd->qhd", share, v).reshape(n, HIDDEN), "attn_output")
        h = norm(x, block["ffn_norm.weight"])
        gate = linear(h, "ffn_gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, "ffn_up"), "ffn_down")
    return norm(x, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T
