"""Engines under test in processes of their own, so that they stay loaded and take turns."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from common import absent

_SCRIPTS = Path(__file__).with_name("workers")


class Worker:
    """A process that answers one JSON line with another.

    Args:
        python: the interpreter that has the engine.
        script: a file of `workers`; its first line tells its name as {"ready": name}.
        *args: of the script.
    """

    def __init__(self, python: str, script: str, *args: str) -> None:
        try:
            self._process = subprocess.Popen(
                [python, str(_SCRIPTS / script), *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            absent(f"{python} to run {script}: {error.strerror}")
        ready = self._process.stdout.readline()
        if not ready:
            absent(f"{script} did not start under {python}")
        self.name = json.loads(ready)["ready"]

    def ask(self, **question: Any) -> dict[str, Any]:
        """Returns the answer; the process answers one question at a time."""
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} ended with {self._process.wait()}")
        return json.loads(answer)

    def close(self) -> None:
        """Ends the process and waits for it."""
        self._process.stdin.close()
        self._process.wait(30)
