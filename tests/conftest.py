"""What several rooms' tests need."""

from pathlib import Path

import pytest

from tokenmill.core.errors import DownloadFailed
from tokenmill.package.cache import Cache
from tokenmill.package.catalogue import pull, read_catalogue
from tokenmill.package.resolve import resolve_model

FETCH = "fetch it with: tokenmill pull smollm2"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The real model's GGUF file, from the user's cache; `make test` puts it there."""
    try:
        return pull(read_catalogue()["smollm2"], Cache.at(None), offline=True)
    except DownloadFailed:
        pytest.skip(f"SmolLM2 is not in the cache; {FETCH}")


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf) -> Path:
    """SmolLM2's directory with the weights as they are."""
    return resolve_model(str(smollm2_gguf), Cache.at(None))


@pytest.fixture(scope="session")
def smollm2_fp32(smollm2_gguf) -> Path:
    """SmolLM2's directory with the weights in float32."""
    return resolve_model(str(smollm2_gguf), Cache.at(None), precision="fp32")
