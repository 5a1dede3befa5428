"""Which variant of a model package is taken, and why the others are not.

A function of what the manifest says and of what the caller asked for. A variant that is made for
a provider that was not asked for is never taken unless it is named.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tokenmill.core.errors import InvalidOption, UnsupportedModel
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.manifest import Manifest, Variant
from tokenmill.package.model_package import Choice

_SUFFIX = "ExecutionProvider"

_ON_GPU = ("cuda", "dml", "migraphx", "nvtensorrtrtx", "rocm", "tensorrt", "webgpu")
_DEVICES = dict.fromkeys(("cpu", "dnnl", "xnnpack"), "cpu") | dict.fromkeys(_ON_GPU, "gpu")
"""The device of providers that have one only; others fit every device."""


def choose_variant(manifest: Manifest, options: LoadOptions) -> tuple[Variant, str | None, Choice]:
    """Returns a variant, what remains to be chosen inside it, and the reasons.

    "NAME" names a variant, "NAME/INNER" also what its directory offers in turn. Without a name the
    caller's providers are tried in order: variants made for that provider first, then variants
    made for none; of several the manifest's first.

    Raises:
        InvalidOption: the variant that was named is not there.
        UnsupportedModel: none fits; the message says of each why.
    """
    providers = options.providers or ("cpu",)
    if options.variant is not None:
        chosen, inner = _named(manifest, options.variant)
        refusal = _refusal(chosen, providers)
        why = "it was asked for" + (f", though {refusal}" if refusal else "")
        return chosen, inner, _choice(manifest, chosen, why, providers)
    ranks = {variant.name: _rank(variant, providers) for variant in manifest.variants}
    able = [variant for variant in manifest.variants if ranks[variant.name] is not None]
    if not able:
        reasons = (f"{one.name}: {_refusal(one, providers)}" for one in manifest.variants)
        raise UnsupportedModel(
            f"{manifest.document.file}: no variant runs on {', '.join(providers)}",
            why="; ".join(reasons),
            fix="Ask for another provider with --ep, or name a variant with --variant",
        )
    # min() keeps the manifest's order among equals.
    chosen = min(able, key=lambda variant: ranks[variant.name] or (0, 0))
    place, general = ranks[chosen.name] or (0, 0)
    provider = providers[place]
    why = f"the first one for any provider, {provider} too" if general else f"for {provider}"
    if not general:
        why = f"the first one {why}"
    return chosen, None, _choice(manifest, chosen, why, providers)


def short_name(ep: str) -> str:
    """Returns "cuda" for "CUDAExecutionProvider"."""
    return ep.removesuffix(_SUFFIX).lower()


def _choice(manifest: Manifest, chosen: Variant, why: str, providers: Sequence[str]) -> Choice:
    others = {
        other.name: _refusal(other, providers) or f"{chosen.name} was taken"
        for other in manifest.variants
        if other is not chosen
    }
    return Choice("variant", chosen.name, why, others)


def _named(manifest: Manifest, text: str) -> tuple[Variant, str | None]:
    by_name = {variant.name: variant for variant in manifest.variants}
    name, _, inner = text.partition("/")
    if text in by_name:
        return by_name[text], None
    if inner and name in by_name:
        return by_name[name], inner
    close = difflib.get_close_matches(text, by_name, n=1)
    raise InvalidOption(
        f"there is no variant {text!r}",
        why=f"the package has {', '.join(by_name)}",
        fix=f"Did you mean {close[0]!r}?" if close else "Give one of these names",
    )


def _rank(variant: Variant, providers: Sequence[str]) -> tuple[int, bool] | None:
    """Returns the provider's place, and whether it is for any; less is better, None unfit."""
    for place, provider in enumerate(providers):
        if _has_device(provider, variant.device):
            if variant.ep is None:
                return place, True
            if short_name(variant.ep) == short_name(provider):
                return place, False
    return None


def _has_device(provider: str, device: str | None) -> bool:
    return device is None or _DEVICES.get(short_name(provider), device) == device


def _refusal(variant: Variant, providers: Sequence[str]) -> str:
    """Returns why a variant does not fit, or ""."""
    if _rank(variant, providers) is not None:
        return ""
    if variant.ep is not None and short_name(variant.ep) not in map(short_name, providers):
        return f"it is for {short_name(variant.ep)}"
    return f"it is for the device {variant.device}"
