"""A package's decoder graph, rewritten."""

from __future__ import annotations

from tokenmill.backends.config import BackendConfig
from tokenmill.backends.graph.ports import DecoderPorts, StatePorts
from tokenmill.backends.graph.rewrite import Rewritten, rewrite
from tokenmill.backends.ort.probe import make_probe
from tokenmill.package.model_package import ModelPackage, Role, StateLayout


def rewrite_decoder(
    package: ModelPackage, config: BackendConfig, *, share_buffers: bool = True
) -> Rewritten:
    """Returns what the rewrites make of the package's decoder. Raises as `rewrite` does.

    Args:
        package: whose decoder to rewrite.
        config: where results are kept.
        share_buffers: also make plain state one buffer, where that is right.
    """
    ports = rewrite_ports(package, share_buffers=share_buffers)
    probe = make_probe() if ports.state else None
    return rewrite(package.decoder.file, ports, config.cache_dir, probe)


def rewrite_ports(package: ModelPackage, *, share_buffers: bool = True) -> DecoderPorts:
    """Returns the package's ports as the rewrites know them."""
    decoder = package.decoder

    def name(role: Role) -> str | None:
        port = decoder.find(role)
        return None if port is None else port.name

    state: tuple[StatePorts, ...] = ()
    if share_buffers and package.state.layout is StateLayout.PLAIN:
        state = tuple(
            StatePorts(
                past_key=decoder.port(Role.PAST_KEY, layer.layer).name,
                past_value=decoder.port(Role.PAST_VALUE, layer.layer).name,
                present_key=decoder.port(Role.PRESENT_KEY, layer.layer).name,
                present_value=decoder.port(Role.PRESENT_VALUE, layer.layer).name,
                num_kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
            )
            for layer in package.state.attention
        )
    return DecoderPorts(
        logits=decoder.port(Role.LOGITS).name,
        attention_mask=name(Role.ATTENTION_MASK),
        input_ids=decoder.port(Role.INPUT_IDS).name,
        position_ids=name(Role.POSITION_IDS),
        use_cache_branch=name(Role.USE_CACHE_BRANCH),
        state=state,
        in_place=package.state.layout is StateLayout.SHARED_BUFFER,
        context_length=package.context_length,
    )
