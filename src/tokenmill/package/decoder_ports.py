"""A decoder's ports in their roles."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.package.model_package import Ignored, Port, PortBinding


@dataclass(frozen=True, slots=True)
class DecoderPorts:
    """All ports of a decoder, and the ones that the readers need at hand.

    Attributes:
        state: by layer: past key, past value, present key, present value.
        ignored: outputs without a role; nothing needs them.
    """

    bindings: tuple[PortBinding, ...]
    logits: Port
    state: tuple[tuple[Port, Port, Port, Port], ...]
    ignored: tuple[Ignored, ...]
