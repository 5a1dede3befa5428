"""Runs prompts on onnxruntime-genai; see compare_genai.py. Needs nothing of Tokenmill."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime_genai as og


def main() -> None:
    directory, threads = sys.argv[1:]
    config = og.Config(directory)
    session = {"session_options": {"intra_op_num_threads": int(threads)}}
    config.overlay(json.dumps({"model": {"decoder": session}}))
    model = og.Model(config)
    print(json.dumps({"ready": f"onnxruntime-genai {og.__version__}"}), flush=True)
    for line in sys.stdin:
        ask = json.loads(line)
        length = len(ask["prompt"]) + ask["tokens"]
        start = time.perf_counter()
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = og.Generator(model, params)
        generator.append_tokens(np.array(ask["prompt"], dtype=np.int32))
        generator.generate_next_token()
        generator.get_next_tokens()
        first = time.perf_counter()
        count = 1
        while not generator.is_done() and count < ask["tokens"]:
            generator.generate_next_token()
            generator.get_next_tokens()
            count += 1
        end = time.perf_counter()
        answer = {"first": first - start, "decode": end - first, "tokens": count}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
