"""Algorithms that look at the gradients of the domains' risks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from shiftbed.algorithms.base import ERM, Metrics, Minibatches, backward, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.numerics import full_precision
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import Space, choice, log_uniform, uniform


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that learn; a wrapper may have frozen the others."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def gradients_by_domain(
    network: nn.Module, batches: Batches, create_graph: bool = False
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The D risks, and for each trainable parameter its D gradients in one tensor.

    Every domain has a forward pass of its own: after a common one each gradient would go back through all examples.
    """
    parameters = tuple(trainable(network).values())
    risks, gradients = [], []
    for x, y in batches:
        risk = F.cross_entropy(network(x), y)
        gradients.append(torch.autograd.grad(risk, parameters, create_graph=create_graph, materialize_grads=True))
        risks.append(risk)
    return torch.stack(risks), [torch.stack(of_domains) for of_domains in zip(*gradients, strict=True)]


def masked_mean(mask: torch.Tensor, gradients: torch.Tensor) -> torch.Tensor:
    """The mean of D gradients times a mask, divided by the mean of the mask."""
    return mask * gradients.mean(0) / (1e-10 + mask.mean())


def agreed_gradient(gradients: torch.Tensor, tau: float) -> torch.Tensor:
    """The mean of D gradients where |mean of signs| ≥ τ, divided by the share of such places; 0 elsewhere."""
    mask = (gradients.sign().sum(0).abs() >= tau * len(gradients)).to(gradients.dtype)
    return masked_mean(mask, gradients)


def softly_agreed_gradient(gradients: torch.Tensor, tau: float, k: float) -> torch.Tensor:
    """The mean of D gradients times tanh(k (|mean of signs| − τ) / variance), divided by the mean of these factors."""
    count = len(gradients)
    variance = (gradients - gradients.mean(0)).square().sum(0) / max(1, count - 1)  # on CPUs faster than `var`
    margin = (gradients.sign().sum(0).abs() - tau * count) / count
    soft = torch.tanh(k * margin / variance.clamp_min(torch.finfo(variance.dtype).tiny))
    mask = soft.where(margin > 0, (margin == 0).to(soft.dtype))  # at τ itself all passes, as in the sharp mask
    return masked_mean(mask, gradients)


class GradientRule(ERM, ABC):
    """An algorithm that writes the gradient for the optimizer itself, where no loss has it."""

    @abstractmethod
    def gradients(self, batches: Batches) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """A loss to watch, and the gradient of each trainable parameter."""

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """One step of the optimizer along these gradients."""
        loss, gradients = self.gradients(Batches.of(minibatches, unlabeled))
        self.optimizer.zero_grad()
        for parameter, gradient in zip(trainable(self.network).values(), gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.step += 1
        return {"loss": loss.detach()}


@register(
    space=Space(tau=uniform(0.5, 1.0, default=1.0)),
    paper="Parascandolo et al., 2021",
    needs=("domain labels",),
    capturable=True,
)
class ANDMask(GradientRule):
    """Moves a weight only where the gradients of enough domains agree on the direction.

    Departures from the paper, as in DomainBed: the masked gradient of a tensor is divided by the share of its entries
    that agree, and is given to Adam, whose momentum and weight decay move masked weights too.
    """

    def gradients(self, batches: Batches) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The mean gradient over domains, masked."""
        risks, gradients = gradients_by_domain(self.network, batches)
        return risks.mean(), [agreed_gradient(of_domains, self.hparams["tau"]) for of_domains in gradients]


@register(
    space=Space(tau=uniform(0.0, 1.0, default=1.0), k=log_uniform(1e-3, 1e5, default=1e1)),
    paper="Shahtalebi et al., 2021",
    needs=("domain labels",),
    capturable=True,
)
class SANDMask(GradientRule):
    """Moves a weight the more, the better the domains' gradients agree on direction and size.

    Departures from the paper, as in DomainBed: those of ANDMask, whose mask this one softens, and a factor k on the
    argument. From DomainBed: agreement of exactly τ passes whole, so that a large k gives ANDMask (there it is muted,
    and at the default τ = 1, which no agreement exceeds, nothing is ever trained); with one domain the variance is 0.
    """

    def gradients(self, batches: Batches) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The mean gradient over domains, softly masked."""
        risks, gradients = gradients_by_domain(self.network, batches)
        tau, k = self.hparams["tau"], self.hparams["k"]
        return risks.mean(), [softly_agreed_gradient(of_domains, tau, k) for of_domains in gradients]


@register(space=Space(meta_lr=choice(0.05, 0.1, 0.5, default=0.5)), paper="Shi et al., 2021", needs=("domain labels",))
class Fish(ERM):
    """Goes part of the way of one step per domain in a row, which favours gradients that point the same way.

    Departures from the paper, as in DomainBed: the steps in a row are Adam's, whose moments are kept; domains come in
    their own order. From DomainBed: the network itself takes these steps and goes back, where a new network with all
    its initial weights is made in every step; batch norm's count of batches, a whole number, is not scaled; the loss
    that is shown is the mean over domains, not the last one's.
    """

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """A step on every domain, one after the other, of which the weights keep the share `meta_lr`."""
        weights = [value for value in self.network.state_dict().values() if value.is_floating_point()]
        before = [value.clone() for value in weights]
        losses = []
        for x, y in Batches.of(minibatches, unlabeled):
            loss = F.cross_entropy(self.network(x), y)
            self.optimizer.zero_grad()
            backward(loss)
            self.optimizer.step()
            losses.append(loss.detach())
        for value, old in zip(weights, before, strict=True):
            value.copy_(torch.lerp(old, value, self.hparams["meta_lr"]))
        self.step += 1
        return {"loss": torch.stack(losses).mean()}


# Not capturable: replayed from a CUDA graph, second derivatives of convolutions differ in the last bits (measured).
@register(
    space=Space(penalty=log_uniform(1e1, 1e5, default=1e3)),
    paper="Koyama and Yamaguchi, 2020",
    needs=("domain labels",),
)
class IGA(ERM):
    """Penalises the distance of the domains' gradients from their mean.

    Departures from the paper, as in DomainBed: the squared distances are summed over domains, not averaged. From
    OoD-Bench: the domains' gradients are differentiated again (there they are constants, and its IGA is ERM).
    """

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean risk plus the weighted sum, over domains and parameters, of squared distances."""
        # Second derivatives need full precision, and fused attention has none.
        with full_precision(batches.x), sdpa_kernel(SDPBackend.MATH):
            risks, gradients = gradients_by_domain(self.network, batches, create_graph=True)
        penalty = torch.stack([(g - g.mean(0)).square().sum() for g in gradients]).sum()
        return risks.mean() + self.hparams["penalty"] * penalty, {"penalty": penalty}


@torch.no_grad()
def after_first_adam_step(
    parameters: tuple[torch.Tensor, ...], gradients: tuple[torch.Tensor, ...], lr: float, weight_decay: float
) -> list[torch.Tensor]:
    """Where a fresh Adam moves parameters: its first two moments are the gradient and its square."""
    gradients = torch._foreach_add(gradients, parameters, alpha=weight_decay)
    sizes = torch._foreach_add(torch._foreach_abs(gradients), 1e-8)
    return [moved.requires_grad_() for moved in torch._foreach_addcdiv(parameters, gradients, sizes, value=-lr)]


@register(
    space=Space(mldg_beta=log_uniform(1e-1, 1e1, default=1.0), n_meta_test=choice(1, 2, default=2)),
    paper="Li et al., 2018",
    needs=("domain labels", "two domains"),
    capturable=True,
)
class MLDG(GradientRule):
    """Asks that a step on one domain also lowers the risk of another.

    Departures from the paper, as in DomainBed: the inner step is Adam's first one, its derivative is left out (first
    order), and the divisor is D also where there are fewer pairs. From DomainBed: at least one domain is left to train
    on (there, two domains and two meta-test domains train nothing); the pairs go through the network itself, not
    through copies, so that batch norm sees them; minibatches of unequal sizes are not cut. From OoD-Bench, whose copy
    is older: meta-test domains are held out, where every domain had its turn and the next in a cycle was its test.
    """

    recomputable = False  # the weights of the inner step are gone when gradients are computed

    def gradients(self, batches: Batches) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Those of meta-training domains, plus β times those of meta-test domains after an inner step."""
        minibatches = self.shuffled(batches)
        held_out = max(1, min(self.hparams["n_meta_test"], len(minibatches) - 1))
        names, parameters = zip(*trainable(self.network).items(), strict=True)
        beta, lr, weight_decay = (self.hparams[name] for name in ("mldg_beta", "lr", "weight_decay"))
        losses, total = [], [torch.zeros_like(parameter) for parameter in parameters]
        for (x, y), (x_test, y_test) in zip(minibatches[:-held_out], cycle(minibatches[-held_out:]), strict=False):
            risk = F.cross_entropy(self.network(x), y)
            gradients = torch.autograd.grad(risk, parameters, materialize_grads=True)
            moved = after_first_adam_step(parameters, gradients, lr, weight_decay)
            inner = dict(zip(names, moved, strict=True))
            risk_after = F.cross_entropy(functional_call(self.network, inner, (x_test,)), y_test)
            gradients_after = torch.autograd.grad(risk_after, moved, materialize_grads=True)
            torch._foreach_add_(total, gradients, alpha=1 / len(minibatches))
            torch._foreach_add_(total, gradients_after, alpha=beta / len(minibatches))
            losses.append(risk + beta * risk_after)
        return torch.stack(losses).sum() / len(minibatches), total


def _products(left: torch.Tensor, right: torch.Tensor, batches: Batches) -> torch.Tensor:
    """The mean over each domain's examples of the outer product of two vectors, one row per domain."""
    if len(set(batches.sizes)) == 1:
        left, right = (values.unflatten(0, (len(batches), -1)) for values in (left, right))
        return (left.mT @ right / batches.sizes[0]).flatten(1)
    pairs = zip(batches.split(left), batches.split(right), strict=True)
    return torch.stack([(a.T @ b / len(a)).flatten() for a, b in pairs])


def head_gradient_variances(
    head: nn.Module, features: torch.Tensor, logits: torch.Tensor, batches: Batches
) -> torch.Tensor:
    """The variance, over each domain's examples, of each coordinate of the head's gradient: one row per domain.

    The gradient of a linear head for one example is the outer product of p − 1_y and (z, 1): its first two moments are
    two matrix products, and no gradient of an example is ever formed.
    """
    if isinstance(head, nn.Linear):
        probabilities = logits.softmax(1)
        residuals = probabilities - torch.zeros_like(probabilities).scatter(1, batches.y[:, None], 1.0)
        inputs = F.pad(features, (0, 1), value=1.0)
        return _products(residuals.square(), inputs.square(), batches) - _products(residuals, inputs, batches).square()

    def loss(parameters: dict[str, torch.Tensor], z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(head, parameters, (z[None],)), y[None])

    by_name = vmap(grad(loss), (None, 0, 0))(dict(head.named_parameters()), features, batches.y)
    gradients = torch.cat([values.flatten(1) for values in by_name.values()], 1)
    return batches.mean(gradients.square()) - batches.mean(gradients).square()


@register(
    space=Space(
        **{
            "lambda": log_uniform(1e1, 1e4, default=1e3),
            "penalty_anneal_iters": uniform(0, 5000, default=1500, integer=True),
            "ema": uniform(0.9, 0.99, default=0.95),
        }
    ),
    paper="Rame et al., 2022",
    needs=("domain labels",),
    capturable=True,
)
class Fishr(ERM):
    """Penalises differences between domains in the variance of the classifier's gradients.

    Departures from the paper, as in DomainBed: squared distances are averaged over the coordinates of the gradient, not
    summed. From DomainBed: none in the arithmetic; the variances of a linear head are two matrix products, and the
    moving averages are saved with the rest.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        if self.hparams["ema"] >= 1:
            raise AlgorithmError(f"Fishr's ema is {self.hparams['ema']}; set a number below 1.")
        self.restart_step = self.hparams["penalty_anneal_iters"] or None
        count = sum(parameter.numel() for parameter in self.classifier.parameters())
        self.register_buffer("variances", torch.zeros(num_domains, count))

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """Mean cross-entropy plus, once annealed, the weighted variance over domains of the averaged variances."""
        features = self.featurizer(batches.x)
        logits = self.classifier(features)
        loss = F.cross_entropy(logits, batches.y)
        with full_precision(features) as z:
            new = head_gradient_variances(self.classifier, z, logits.to(z.dtype), batches)
        ema = self.hparams["ema"]
        average = ema * self.get_buffer("variances") + (1 - ema) * new
        # Divided by 1 − ema, the gradient does not depend on it, while a settled average counts 1 / (1 − ema) times.
        penalty = (average / (1 - ema)).var(0, correction=0).mean()
        weight = self.hparams["lambda"] if step >= self.hparams["penalty_anneal_iters"] else 0.0
        return loss + weight * penalty, {"penalty": penalty, "variances": average}
