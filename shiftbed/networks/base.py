"""What a featurizer is, what can be frozen in it, and the registry of them all."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from shiftbed.errors import AlgorithmError, UnknownNameError
from shiftbed.registry import Registry, did_you_mean

BatchNorm = Literal["trained", "frozen-statistics", "frozen"]
BATCH_NORM: tuple[BatchNorm, ...] = ("trained", "frozen-statistics", "frozen")


class FeaturizerModule(nn.Module):
    """A module that turns inputs into a feature vector and says how long it is.

    Attributes:
        name: The name it is registered under.
        n_outputs: The length of the feature vector.
        revision: Raised whenever results change.
        stages: The modules whose outputs are convolution maps (N×C×H×W), in order; empty if there are none. A forward
            hook on one of them sees and can replace its map.
        body: The module whose parameters bear the names that published weights have.
        strides_first: Whether initial weights had a ResNet's strides moved to the first convolution of its blocks.
    """

    name: str
    n_outputs: int
    revision: int = 1
    strides_first: bool = False

    def __init__(self, input_shape: tuple[int, ...], hparams: Mapping[str, Any]) -> None:
        super().__init__()
        self._fixed_norms: list[nn.Module] = []

    @property
    def stages(self) -> list[nn.Module]:
        """The modules whose outputs are convolution maps, in order."""
        return []

    @property
    def body(self) -> nn.Module:
        """The module whose parameters bear the names that published weights have."""
        return self

    def accelerate(self) -> None:
        """Makes it ready for many steps on a GPU."""
        self.compile()

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """As of any module, but with hooks inside it runs plainly: compiled code does not see them come and go."""
        if self._compiled_call_impl is not None and any(module._forward_hooks for module in self.modules()):
            return self._call_impl(*inputs, **named)
        return super().__call__(*inputs, **named)

    def train(self, mode: bool = True) -> "FeaturizerModule":
        """As of any module, but batch norms whose statistics are fixed keep using them.

        Departures from DomainBed: it returns the module, as `nn.Module.train` does (DomainBed's returns None).
        """
        super().train(mode)
        for norm in self._fixed_norms:
            norm.eval()
        return self

    def set_batch_norm(self, mode: BatchNorm) -> None:
        """Says what of batch norm is learned.

        Args:
            mode: `trained`: statistics and affine parameters; `frozen-statistics`: the affine parameters only, which
                the DomainBed paper calls frozen; `frozen`: nothing.
        """
        if mode not in BATCH_NORM:
            raise AlgorithmError(f"There is no batch_norm '{mode}'.{did_you_mean(str(mode), list(BATCH_NORM))}")
        if mode == "trained":
            return
        norms = [module for module in self.modules() if isinstance(module, _BatchNorm)]
        self._fix_statistics(norms)
        if mode == "frozen":
            for norm in norms:
                norm.requires_grad_(False)

    def freeze_stages(self, count: int) -> None:
        """Stops learning in everything up to and including a stage; statistics of batch norm stay as they are.

        Args:
            count: How many stages, counted from the input; 0 changes nothing.
        """
        if not 0 <= count <= len(self.stages):
            have = f"{len(self.stages)} stages" if self.stages else "no convolutional stages"
            raise AlgorithmError(f"The network {self.name} has {have}; {count} of them cannot be frozen.")
        if count == 0:
            return
        modules = list(self.modules())  # in the order of the forward pass, a stage before its parts
        last = list(self.stages[count - 1].modules())[-1]
        frozen = modules[: modules.index(last) + 1]
        for module in frozen:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)
        self._fix_statistics(frozen)

    def _fix_statistics(self, modules: Iterable[nn.Module]) -> None:
        self._fixed_norms += [module for module in modules if isinstance(module, _BatchNorm)]
        self.train(self.training)


class NetworkRegistry(Registry[type[FeaturizerModule]]):
    """Our networks, which it lists, and behind them every network of timm, which is looked up when named."""

    def add(self, name: str, entry: type[FeaturizerModule]) -> None:
        """Registers a network; the class learns its name."""
        entry.name = name
        super().add(name, entry)

    def canonical_name(self, name: str) -> str:
        """The registered spelling of one of ours or of timm's names.

        Raises:
            UnknownNameError: There is no such network; the message suggests the nearest names of both.
        """
        try:
            return super().canonical_name(name)
        except UnknownNameError:
            from shiftbed.networks.backbones import timm_names, timm_network

            if name.lower() not in timm_names():
                ours_and_timms = [*self, *timm_names()]
                raise UnknownNameError(f"There is no network '{name}'.{did_you_mean(name, ours_and_timms)}") from None
            self.add(name.lower(), timm_network(name.lower()))
            return name.lower()

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if not self._entries[name].__module__.endswith(".backbones"))


NETWORKS = NetworkRegistry("network", "shiftbed.networks")
