"""Runs prompts on Tokenmill; see compare_genai.py."""

from __future__ import annotations

import json
import sys
import time

import tokenmill


def main() -> None:
    directory, threads = sys.argv[1:]
    with tokenmill.LLM(directory, threads=int(threads), max_rows=1) as llm:
        print(json.dumps({"ready": f"tokenmill {tokenmill.__version__}"}), flush=True)
        for line in sys.stdin:
            ask = json.loads(line)
            start = time.perf_counter()
            stream = llm.stream(
                ask["prompt"], max_tokens=ask["tokens"], temperature=0, ignore_eos=True
            )
            count, first = 0, None
            for event in stream:
                count += len(event.token_ids)
                first = first or time.perf_counter()
            end = time.perf_counter()
            answer = {"first": first - start, "decode": end - first, "tokens": count}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
