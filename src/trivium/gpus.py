"""GPUs for training: FLOP/s, memory and bandwidths, from the vendor's data sheets.

FLOP/s are those of dense bfloat16 matmuls. GPUs before compute capability 8.0 have no bfloat16 and
train in float16, so their FLOP/s are those of float16. Link bandwidths are per direction, for
NVLink if the GPU has it, else PCIe. Network bandwidths follow NVIDIA's DGX systems: one card of 100
Gbit/s for two GPUs (V100), or one card of 200 (A100) or 400 Gbit/s for each GPU. For other GPUs
they are 100 Gbit/s for a machine with eight GPUs, as in rented cloud machines.

The fraction of the peak that matmuls reach, including the gaps between kernels, was fitted to
published training runs for A100 and H100 (docs/plan.md compares them). For other GPUs it is an
assumption.
"""

from __future__ import annotations

from dataclasses import dataclass

from trivium.errors import RecipeError, did_you_mean


@dataclass(frozen=True)
class Gpu:
    """The specifications of one GPU model.

    Args:
        device: a part of the device name that CUDA reports.
        peak_flops: the peak FLOP/s of dense matmuls.
        memory: the memory in bytes.
        memory_bandwidth: the memory bandwidth in bytes per second.
        link_bandwidth: the bandwidth to another GPU of the same machine in bytes per second.
        network_bandwidth: the bandwidth to other machines in bytes per second, for each GPU.
        matmul_efficiency: the fraction of the peak that the matmuls of a training step reach.
        has_bf16: whether matmuls run in bfloat16 (otherwise in float16).
    """

    device: str
    peak_flops: float
    memory: float
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    matmul_efficiency: float = 0.45
    has_bf16: bool = True


_GIB = 2**30

# Where one name is a part of another, the longer one comes first.
GPUS = {
    "b200": Gpu("B200", 2250e12, 180e9, 8.0e12, 900e9, 50e9, 0.42),
    "h200": Gpu("H200", 989e12, 141e9, 4.8e12, 450e9, 50e9, 0.42),
    "h100-pcie": Gpu("H100 PCIe", 756e12, 80 * _GIB, 2.0e12, 64e9, 1.5e9, 0.42),
    "h100": Gpu("H100", 989e12, 80 * _GIB, 3.35e12, 450e9, 50e9, 0.42),
    "a100-40g": Gpu("A100-SXM4-40GB", 312e12, 40 * _GIB, 1.555e12, 300e9, 25e9, 0.52),
    "a100-80g": Gpu("A100", 312e12, 80 * _GIB, 2.039e12, 300e9, 25e9, 0.52),
    "v100": Gpu("V100", 125e12, 32 * _GIB, 0.9e12, 150e9, 6.25e9, has_bf16=False),
    "l40s": Gpu("L40S", 362e12, 45 * _GIB, 0.864e12, 32e9, 1.5e9),
    "l4": Gpu("L4", 121e12, 22.5 * _GIB, 0.3e12, 32e9, 1.5e9),
    "a10g": Gpu("A10G", 70e12, 22.5 * _GIB, 0.6e12, 32e9, 1.5e9),
    "t4": Gpu("T4", 65e12, 15 * _GIB, 0.3e12, 16e9, 1.5e9, has_bf16=False),
    "rtx-4090": Gpu("RTX 4090", 165e12, 24 * _GIB, 1.008e12, 32e9, 1.5e9),
    "rtx-3090": Gpu("RTX 3090", 71e12, 24 * _GIB, 0.936e12, 32e9, 1.5e9),
}
"""The GPUs that `trivium plan --gpu` supports, by name."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU called `name`. Raises RecipeError if the name is unknown."""
    if name.lower() not in GPUS:
        near = did_you_mean(name.lower(), GPUS)
        raise RecipeError(f'there is no GPU "{name}"; known are {", ".join(GPUS)}.{near}')
    return GPUS[name.lower()]
