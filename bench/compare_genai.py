"""Decode and first-token time against onnxruntime-genai: same directory, threads and prompts.

Each engine runs in a process of its own; their runs alternate. Targets: decode at batch 1 at
least 0.97 of the peer's pooled median, first token of a 1,024-token prompt at most 0.95 of its.

The peer needs an environment with onnxruntime-genai: give its Python with --peer-python, or
install it beside Tokenmill.
"""

from __future__ import annotations

import statistics
import sys

from common import arguments, finish, model_directory, prompt_ids
from worker import Worker


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0, help="0: 9, or 4 with --quick")
    options = parser.parse_args()
    rounds = options.rounds or (4 if options.quick else 9)
    directory = str(model_directory(options.model))
    threads = str(options.threads)
    ours = Worker(sys.executable, "tokenmill_worker.py", directory, threads)
    peer = Worker(options.peer_python, "genai_worker.py", directory, threads)
    print(f"{ours.name} against {peer.name}, {threads} threads, {rounds} rounds")
    decode = {ours: [], peer: []}
    first = {ours: [], peer: []}
    for turn in range(rounds + 1):
        pair = (ours, peer) if turn % 2 == 0 else (peer, ours)
        for worker in pair:
            short = worker.ask(prompt=prompt_ids(128, turn), tokens=128)
            long = worker.ask(prompt=prompt_ids(1024, turn), tokens=1)
            if turn:  # the first round warms up
                decode[worker].append((short["tokens"] - 1) / short["decode"])
                first[worker].append(long["first"])
    ours.close()
    peer.close()

    def line(name: str, values: dict, unit: str) -> tuple[float, float]:
        mine, theirs = (statistics.median(values[worker]) for worker in (ours, peer))
        spread = " to ".join(f"{v:.4g}" for v in (min(values[ours]), max(values[ours])))
        print(f"{name}: {mine:.4g} {unit} ({spread}), peer {theirs:.4g}, {mine / theirs:.3f} of it")
        return mine, theirs

    mine, theirs = line("decode", decode, "tokens/s")
    mine_first, theirs_first = line("first token of 1,024", first, "s")
    figures = {
        "decode_tokens_per_second": mine,
        "peer_decode_tokens_per_second": theirs,
        "decode_ratio": mine / theirs,
        "first_token_seconds": mine_first,
        "peer_first_token_seconds": theirs_first,
        "first_token_ratio": mine_first / theirs_first,
    }
    missed = []
    if figures["decode_ratio"] < 0.97:
        missed.append(f"decode is {figures['decode_ratio']:.3f} of the peer, the target is 0.97")
    if figures["first_token_ratio"] > 0.95:
        missed.append(f"first token is {figures['first_token_ratio']:.3f}, the target is 0.95")
    finish(options, figures, missed)


if __name__ == "__main__":
    main()
