"""Options and weight names of families in which some layers have experts, and others an MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from trivium.interop.family import Hook, NameMap, Option, SpecTree
from trivium.interop.hf_config import ConfigReader
from trivium.models.transformer import TransformerSpec
from trivium.nn.feed_forwards.experts import Experts
from trivium.nn.feed_forwards.mlp import MLP

EXPERTS = "decoder.layers.feed_forward"
"""The spec path of the experts."""


def network_names(networks: Mapping[str, str]) -> NameMap:
    """Return the mapping of the weight names of gated networks inside a layer.

    `networks` maps the prefix of a network in the file to its prefix in the layer's feed-forward
    network, such as "shared_expert." -> "shared.".
    """
    return {
        f"mlp.{hf}{part}_proj": f"feed_forward.{local}{part}"
        for part in ("gate", "up", "down")
        for hf, local in networks.items()
    }


@dataclass(frozen=True)
class SparseLayers:
    """The options `decoder_sparse_step` and `mlp_only_layers`: which layers have experts.

    Args:
        options: the options that set fields of the experts.
        dense_width: the default width of the MLP of the other layers.
    """

    options: Mapping[str, Option]
    dense_width: int

    @property
    def hook(self) -> Hook:
        """The hook that reads and writes the options."""
        return Hook(self._read, self._write)

    def _read(self, config: ConfigReader, tree: SpecTree) -> None:
        """Replace the experts of some layers by an MLP."""
        step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
        if not isinstance(step, int) or step < 1:
            raise config.unsupported("decoder_sparse_step", expected="1 or more")
        if not isinstance(dense, list):
            raise config.unsupported("mlp_only_layers", expected="a list of layer indices")
        width = config.get("intermediate_size", self.dense_width)
        layers = tree.get("decoder.layers")
        if isinstance(layers, dict):
            layers = [layers] * config.num_layers(tree.get("decoder.num_layers"))
        for i, layer in enumerate(layers):
            if i in dense or (i + 1) % step:
                network = {**layer["feed_forward"]["expert"], "kind": "mlp", "d_ff": width}
                layers[i] = {**layer, "feed_forward": network}
        tree.set("decoder.layers", layers)

    def _write(self, spec: TransformerSpec, config: dict[str, Any]) -> None:
        """Write which layers have experts, and the options of the experts.

        Without experts, the options of the experts are left out, except the activation.
        """
        networks = [layer.feed_forward for layer in spec.stacks[0].every_layer]
        dense = [i for i, network in enumerate(networks) if not isinstance(network, Experts)]
        config |= {"decoder_sparse_step": 1, "mlp_only_layers": dense}
        config["intermediate_size"] = self.dense_width
        if dense and isinstance(mlp := networks[dense[0]], MLP):
            config["intermediate_size"] = mlp.d_ff
        experts = next((network for network in networks if isinstance(network, Experts)), None)
        for name, option in self.options.items():
            fields = option.paths[0].removeprefix(f"{EXPERTS}.").split(".")
            if experts is None and fields[-1] != "activation":
                config.pop(name, None)
                continue
            owner = reduce(getattr, fields[:-1], experts) if experts else networks[0]
            value = getattr(owner, fields[-1], None)
            known = option.values or {}
            config[name] = next((hf for hf, local in known.items() if local == value), value)
