"""A program that ends while a model works ends cleanly."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

PROGRAM = """
import sys
from pathlib import Path
from support.scripted import ScriptedBackend, scripted_package
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.model import LoadedModel

backend = ScriptedBackend(lambda so_far: 65, max_context=10**9)
backend.before_run = lambda: print("step", flush=True) if not backend.steps else None
shutdown = backend.shutdown
backend.shutdown = lambda: (shutdown(), print("released", flush=True))
package = scripted_package(Path("."), context_length=10**9)
model = LoadedModel(package, None, backend)
stream = model.submit(GenerateRequest([65, 66]))
next(iter(stream))
"""


def test_what_is_in_flight_is_cancelled_and_the_model_released():
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split() == ["step", "released"]
