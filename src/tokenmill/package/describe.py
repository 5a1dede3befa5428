"""What `tokenmill show` tells of a package, as stable JSON and as text. See docs/show.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenmill.package.model_package import Component, Ignored, ModelPackage, Permissions


def describe(package: ModelPackage) -> dict[str, Any]:
    """Returns everything known about a package, in types that JSON has."""
    text, state = package.text, package.state
    return {
        "format": 1,
        "root": str(package.root),
        "form": package.form.value,
        "fingerprint": package.fingerprint,
        "precision": package.precision,
        "context_length": package.context_length,
        "vocab_size": package.vocab_size,
        "hidden_size": package.hidden_size,
        "components": {
            name: _component(part, package.root) for name, part in package.components.items()
        },
        "state": {
            "layout": state.layout.value,
            "bytes_per_token": state.bytes_per_token,
            "capacity": state.capacity,
            "layers": [
                {
                    "layer": layer.layer,
                    "kind": "attention",
                    "num_kv_heads": layer.num_kv_heads,
                    "head_dim": layer.head_dim,
                    "dtype": layer.dtype,
                    "sliding_window": layer.sliding_window,
                }
                for layer in state.attention
            ],
        },
        "text": {
            "tokenizer": text.tokenizer_file.name if text.tokenizer_file else None,
            "chat_template": text.chat_template is not None,
            "chat_template_source": text.template_source or None,
            "named_templates": sorted(text.named_templates),
            "bos_token_id": text.bos_token_id,
            "add_bos": text.add_bos,
            "eos_token_ids": sorted(text.eos_token_ids),
            "pad_token_id": text.pad_token_id,
            "special_tokens": dict(text.special_tokens),
        },
        "defaults": {name: getattr(package.defaults, name) for name in package.defaults.__slots__},
        "provider_options": [
            {"provider": name, "options": dict(options)}
            for name, options in package.provider_options
        ],
        "provenance": dict(package.provenance),
        "permissions": _permissions(package.permissions),
        "choices": [
            {
                "what": choice.what,
                "chosen": choice.chosen,
                "why": choice.why,
                "others": dict(choice.others),
            }
            for choice in package.choices
        ],
        "ignored": [_ignored(item) for item in package.ignored],
        "losses": [_ignored(item) for item in package.losses],
    }


def _permissions(permissions: Permissions) -> dict[str, Any]:
    overrides = permissions.overrides
    return {
        "prefix_cache": permissions.prefix_cache,
        "continuous_batching": permissions.continuous_batching,
        "prefill_chunk": permissions.prefill_chunk,
        "overrides": None
        if overrides is None
        else {
            name: {"minimum": allowed.minimum, "maximum": allowed.maximum}
            for name, allowed in overrides.items()
        },
    }


def _ignored(item: Ignored) -> dict[str, str]:
    return {"field": item.field, "value": item.value, "why": item.why}


def _component(component: Component, root: Path) -> dict[str, Any]:
    return {
        "file": _relative(component.file, root),
        "weight_bytes": component.weight_bytes,
        "operators": dict(component.operators),
        "ports": [
            {
                "name": binding.port.name,
                "direction": "input" if binding.port.is_input else "output",
                "dtype": binding.port.dtype,
                "shape": list(binding.port.shape),
                "role": binding.role.value,
                "layer": binding.layer,
                "why": binding.why,
            }
            for binding in component.bindings
        ],
    }


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name


def to_text(description: dict[str, Any]) -> str:
    """Returns the description as lines for people; ports of equal layers are folded into one."""
    d = description
    state, text = d["state"], d["text"]
    defaults = ", ".join(f"{k} {v}" for k, v in d["defaults"].items() if v is not None)
    layers = f"{len(state['layers'])} layers of attention, {state['layout']}"
    if state["capacity"] is not None:
        layers += f" of {state['capacity']} tokens"
    bos = f"BOS {text['bos_token_id']} {'added' if text['add_bos'] else 'not added'}"
    facts = {
        "form": d["form"],
        "precision": d["precision"],
        "context": f"{d['context_length']} tokens, vocabulary {d['vocab_size']}",
        "state": f"{layers}, {state['bytes_per_token']} bytes per token",
        "tokenizer": text["tokenizer"] or "none",
        "template": text["chat_template_source"] or "none",
        "ends at": f"{_ids(text['eos_token_ids'])}; {bos}",
        "defaults": defaults or "none: temperature 1",
        "fingerprint": d["fingerprint"],
    }
    lines = [d["root"], *(f"  {name:12} {value}" for name, value in facts.items())]
    for field, value in d["provenance"].items():
        lines.append(f"  from         {field}: {value}")
    for name, component in d["components"].items():
        megabytes = component["weight_bytes"] / 1e6
        lines.append(f"{name}: {component['file']}, {megabytes:.1f} MB of weights")
        operators = list(component["operators"].items())
        lines.append("  operators    " + ", ".join(f"{op} x {n}" for op, n in operators[:6]))
        lines.extend(_port_lines(component["ports"]))
    for choice in d["choices"]:
        lines.append(f"{choice['what']} {choice['chosen']} taken ({choice['why']})")
        lines.extend(f"  not {name}: {why}" for name, why in choice["others"].items())
    lines.extend(_permission_lines(d["permissions"]))
    lines.extend(f"lost: {item['field']} = {item['value']} ({item['why']})" for item in d["losses"])
    lines.extend(
        f"ignored: {item['field']} = {item['value']} ({item['why']})" for item in d["ignored"]
    )
    return "\n".join(lines)


def _permission_lines(permissions: dict[str, Any]) -> list[str]:
    lines = [
        f"permission: {name} {'yes' if value is True else 'no' if value is False else value}"
        for name, value in permissions.items()
        if value is not None and name != "overrides"
    ]
    if permissions["overrides"] is not None:
        allowed = ", ".join(
            f"{name} {_range(bounds)}".strip() for name, bounds in permissions["overrides"].items()
        )
        lines.append(f"permission: a request may set {allowed or 'nothing'}")
    return lines


def _range(bounds: dict[str, float | None]) -> str:
    low, high = bounds["minimum"], bounds["maximum"]
    if low is not None and high is not None:
        return f"from {low:g} to {high:g}"
    if low is not None:
        return f"from {low:g}"
    return "" if high is None else f"up to {high:g}"


def _port_lines(ports: list[dict[str, Any]]) -> list[str]:
    lines = []
    for port in ports:
        if port["layer"] not in (None, 0):
            continue
        count = sum(1 for other in ports if other["role"] == port["role"])
        name = port["name"] if port["layer"] is None else f"{port['name']} ... ({count} layers)"
        shape = ", ".join(str(size) for size in port["shape"])
        lines.append(
            f"  {port['direction']:6} {name}: {port['dtype']} [{shape}] "
            f"is {port['role']} ({port['why']})"
        )
    return lines


def _ids(ids: list[int]) -> str:
    return ", ".join(str(one) for one in ids) or "no token"
