"""Backbones: every network of timm, by its name there, without its head."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import nn

from shiftbed.errors import AlgorithmError
from shiftbed.networks.base import FeaturizerModule
from shiftbed.networks.weights import normalisation


@cache
def timm_names() -> frozenset[str]:
    """All networks that timm knows."""
    import timm

    return frozenset(timm.list_models())


def timm_network(name: str) -> type[FeaturizerModule]:
    """The class of one of timm's networks."""
    return type(name, (TimmNetwork,), {"__module__": __name__, "__doc__": f"The network {name} of timm."})


class TimmNetwork(FeaturizerModule):
    """A network of timm: normalised images in, its pooled features out, dropout (`resnet_dropout`) after them.

    Images arrive in [0, 1] and are normalised as the initial weights expect, with ImageNet's mean and deviation if
    nothing else is known. Channels after the third stay as they are: they are no colours but what an algorithm adds,
    as ARM does. Stages are the maps of a quarter of the image's size and below: `layer1` to `layer4` of a ResNet.

    Departures from DomainBed: random weights are timm's; in a ResNet the last norm of a block starts at one, as in
    torchvision, on which the papers trained, and not at zero, as in timm.
    """

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__(input_shape, hparams)
        if len(input_shape) != 3:
            raise AlgorithmError(f"The network {self.name} takes images, not inputs of shape {input_shape}.")
        channels, *size = input_shape
        self.backbone = _headless(self.name, channels, size)
        mean, deviation = normalisation(hparams.get("initial_weights"), self.name)
        for key, values, rest in (("mean", mean, 0.0), ("deviation", deviation, 1.0)):
            padded = [*values, *[rest] * channels][:channels]
            self.register_buffer(key, torch.tensor(padded).view(-1, 1, 1), persistent=False)
        self.dropout = nn.Dropout(hparams.get("resnet_dropout", 0.0))
        self.n_outputs, self._stage_names = self._explore(input_shape)

    @property
    def stages(self) -> list[nn.Module]:
        """The modules that give maps of a quarter of the image's size and below; none in a vision transformer."""
        return [self.backbone.get_submodule(name) for name in self._stage_names]

    @property
    def body(self) -> nn.Module:
        """The module of timm: its names are those of published weights."""
        return self.backbone

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pooled features of images in [0, 1]."""
        return self.dropout(self.backbone((x - self.mean) / self.deviation))

    @torch.no_grad()
    def _explore(self, input_shape: tuple[int, ...]) -> tuple[int, list[str]]:
        """The length of the features and the names of the stages, seen by passing one black image."""
        modules = dict(self.backbone.named_modules())
        maps: dict[str, torch.Size] = {}
        described = [dict(one) for one in getattr(self.backbone, "feature_info", None) or []]
        candidates = [one for one in described if one["reduction"] >= 4 and one["module"] in modules]

        def note(name: str, output: Any) -> None:
            maps[name] = getattr(output, "shape", torch.Size())

        hooks = [
            modules[one["module"]].register_forward_hook(lambda _, __, output, name=one["module"]: note(name, output))
            for one in candidates
        ]
        self.eval()
        try:
            features = self(torch.zeros(1, *input_shape))
        except (RuntimeError, AssertionError, ValueError) as error:
            shape = "×".join(map(str, input_shape))
            raise AlgorithmError(
                f"The network {self.name} cannot take images of {shape}; choose another image_size "
                f"({str(error) or type(error).__name__})."
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
            self.train()
        stages = {one["module"]: one["num_chs"] for one in candidates if len(maps[one["module"]]) == 4}
        # Some transformers give maps whose channels come last; one of them may have as many channels as rows.
        channels_first = all(maps[name][1] == channels for name, channels in stages.items())
        return features.shape[1], list(stages) if channels_first else []


def _headless(name: str, channels: int, size: list[int]) -> nn.Module:
    """The network of timm with random weights, for images of this size, that gives pooled features."""
    import timm

    options: dict[str, Any] = {}
    published = timm.get_pretrained_cfg(name)
    if published is not None and published.fixed_input_size:
        options["img_size"] = size[0] if size[0] == size[1] else tuple(size)  # some take one number only
    if timm.models.is_model_in_modules(name, ["resnet"]):
        options["zero_init_last"] = False
    network = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **options)
    cut: Any = getattr(getattr(network, "patch_embed", None), "proj", None)
    side_by_side = isinstance(cut, nn.Conv2d) and cut.kernel_size == cut.stride  # patches that overlap fill any size
    if side_by_side and any(side % length for side, length in zip(size, cut.stride, strict=True)):
        patch = cut.stride[0]
        raise AlgorithmError(
            f"The network {name} cuts images into patches of {patch} px, which do not fill {size[0]}×{size[1]}; "
            f"choose an image_size that is a multiple of {patch}."
        )
    return network
