"""Algorithms whose features must withstand another network, which works against them."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from shiftbed import networks
from shiftbed.algorithms.alignment import with_unlabeled
from shiftbed.algorithms.base import ERM, Algorithm, Metrics, Minibatches, backward, register
from shiftbed.algorithms.batches import Batches
from shiftbed.algorithms.numerics import full_precision, reverse_gradient, scale_gradient
from shiftbed.errors import AlgorithmError
from shiftbed.hparams import SizeClass, Space, choice, log_uniform, shared_space, uniform


def adversarial_space(dataset: str, size_class: SizeClass) -> Space:
    """The hyperparameters of DANN and CDANN: each player has a learning rate and weight decay of its own."""
    shared = shared_space(size_class, dataset)
    return Space(
        **{"lambda": log_uniform(1e-2, 1e2, default=1.0)},
        lr_g=shared["lr"],
        lr_d=shared["lr"],
        weight_decay_g=shared["weight_decay"],
        weight_decay_d=log_uniform(1e-6, 1e-2, default=0.0),
        d_steps_per_g_step=log_uniform(1, 8, default=1, base=2, integer=True),
        grad_penalty=log_uniform(1e-2, 1e1, default=0.0),
        beta1=choice(0.0, 0.5, default=0.5),
        mlp_width=log_uniform(2**6, 2**10, default=256, base=2, integer=True),
        mlp_depth=choice(3, 4, 5, default=3),
        mlp_dropout=choice(0.0, 0.1, 0.5, default=0.0),
    )


class Players(Algorithm, ABC):
    """A discriminator and the networks that work against it take turns: of `cycle` updates one is theirs."""

    disc_opt: torch.optim.Optimizer

    @abstractmethod
    def discrimination(self, batches: Batches) -> torch.Tensor:
        """What the discriminator minimises in its turns; no graph goes through the other networks."""

    def discriminates(self, step: int) -> bool:
        """Whether a step is the discriminator's."""
        return (step + 1) % self.cycle != self.cycle - 1

    def phase(self, step: int) -> Hashable:
        """Also whose turn it is."""
        return super().phase(step), self.discriminates(step)

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """One step of whose turn it is."""
        if not self.discriminates(self.step):
            return super().update(minibatches, unlabeled)
        loss = self.discrimination(Batches.of(minibatches, unlabeled))
        self.disc_opt.zero_grad()
        backward(loss)
        self.disc_opt.step()
        self.step += 1
        return {"loss": loss.detach(), "disc_loss": loss.detach()}


@register(space=adversarial_space, paper="Ganin et al., 2016", needs=("domain labels", "two domains"), capturable=True)
class DANN(Players, ERM):
    """Learns features from which a discriminator cannot tell the domain.

    Discriminator and generator (featurizer and classifier) take turns; `optimizer` is the generator's.

    Departures from the paper, as in DomainBed: turns, each with an Adam of its own, replace the reversal of gradients;
    the weight is constant; the discriminator's loss has a gradient penalty, which the generator maximises too. From
    DomainBed: the discriminator's turn builds no graph through the featurizer, whose gradients it does not use. From
    OoD-Bench, whose copy is older: the gradient penalty is of an example's own domain (there of all domains, whose
    probabilities add up to a constant in batches of equal size, so that nothing is penalised).
    """

    takes_unlabeled = True

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.cycle = 1 + self.hparams["d_steps_per_g_step"]
        self.num_outputs = num_domains + self.hparams.get("unlabeled_domains", 0)
        self.discriminator = networks.MLP(self.featurizer.n_outputs, self.num_outputs, self.hparams)
        self.disc_opt = self._adam(self.discriminator, "d")

    def make_optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer of featurizer and classifier."""
        return self._adam(self.network, "g")

    def _adam(self, module: nn.Module, player: str) -> torch.optim.Optimizer:
        rate, decay = self.hparams[f"lr_{player}"], self.hparams[f"weight_decay_{player}"]
        return torch.optim.Adam(module.parameters(), lr=rate, weight_decay=decay, betas=(self.hparams["beta1"], 0.9))

    @property
    def gen_opt(self) -> torch.optim.Optimizer:
        """The generator's optimizer, by its name in DomainBed."""
        return self.optimizer

    def conditioned(self, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """What the discriminator sees of an example."""
        return features

    def balanced(self, losses: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """The mean of all examples' losses."""
        return losses.mean()

    def discriminator_loss(self, features: torch.Tensor, classes: torch.Tensor, batches: Batches) -> torch.Tensor:
        """Cross-entropy of the domain, plus the mean squared norm of its slope at the examples."""
        if len(batches) > self.num_outputs:
            name, known = type(self).__name__, self.num_outputs
            raise AlgorithmError(
                f"{name} tells {known} domains apart but got {len(batches)}; set unlabeled_domains to the number of "
                "unlabelled ones."
            )
        with full_precision(features) as z:
            seen = self.conditioned(z, classes)
            if not seen.requires_grad:  # the discriminator's turn, or a frozen featurizer
                seen = seen.detach().requires_grad_()
            losses = F.cross_entropy(self.discriminator(seen), batches.domains, reduction="none")
            loss = self.balanced(losses, classes)
            if self.hparams["grad_penalty"]:
                (slopes,) = torch.autograd.grad(losses.sum(), seen, create_graph=True)
                loss = loss + self.hparams["grad_penalty"] * slopes.square().sum(1).mean()
        return loss

    def objective(self, batches: Batches, step: int) -> tuple[torch.Tensor, Metrics]:
        """The generator's: risk over all examples minus lambda times the discriminator's loss."""
        everyone = with_unlabeled(batches)
        features = self.featurizer(everyone.x)
        logits = self.classifier(features)
        disc_loss = self.discriminator_loss(features, with_predicted(batches.y, logits), everyone)
        risk = F.cross_entropy(logits[: len(batches.y)], batches.y)
        return risk - self.hparams["lambda"] * disc_loss, {"disc_loss": disc_loss}

    def discrimination(self, batches: Batches) -> torch.Tensor:
        """The discriminator's loss on features that are constants."""
        everyone = with_unlabeled(batches)
        with torch.no_grad():
            features = self.featurizer(everyone.x)
            classes = with_predicted(batches.y, self.classifier(features))
        return self.discriminator_loss(features, classes, everyone)


def with_predicted(y: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The labels of the first examples and the predicted classes of the others, which have none."""
    return torch.cat([y, logits[len(y) :].argmax(1)])


@register(space=adversarial_space, paper="Y. Li et al., 2018", needs=("domain labels", "two domains"), capturable=True)
class CDANN(DANN):
    """Learns features from which a discriminator that knows the class cannot tell the domain.

    Departures from the paper, as in DomainBed: one discriminator sees features plus an embedding of the class, instead
    of one discriminator per class and a second one weighted by class priors; turns as in DANN. From DomainBed: every
    class present in the batch weighs the same and all weights sum to 1, also when a class is absent.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.class_embeddings = nn.Embedding(num_classes, self.featurizer.n_outputs)
        self.disc_opt.add_param_group({"params": self.class_embeddings.parameters()})

    def conditioned(self, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """Features plus the embedding of the class."""
        return features + self.class_embeddings(classes)

    def balanced(self, losses: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        """The mean over the classes present of the mean loss of their examples."""
        shares = 1 / (classes[:, None] == classes).sum(1).to(losses.dtype)
        return shares @ losses / shares.sum()


def linear_heads(inputs: int, heads: int, outputs: int) -> nn.Linear:
    """Linear layers side by side as one, each from small Xavier weights and zero biases."""
    layers = nn.Linear(inputs, heads * outputs)
    for weight in layers.weight.data.chunk(heads):
        nn.init.xavier_uniform_(weight, gain=0.1)
    nn.init.zeros_(layers.bias)
    return layers


@register(
    space=Space(  # names are a part of the seeds of draws: by OoD-Bench's own these are its points
        lbd_d=log_uniform(1e-2, 1e0, default=0.5),
        lbd_c=log_uniform(1e-3, 1e-1, default=0.05),
        lbd_cp=log_uniform(1e-4, 1e-1, default=0.01),
        lr_d=log_uniform(1e-5, 10**-3.5, default=5e-5),
        lr_c=log_uniform(1e-6, 10**-4.5, default=5e-6),
        lr_cp=log_uniform(1e-6, 10**-4.5, default=5e-6),
    ),
    paper="Zhao et al., 2020",
    needs=("domain labels", "two domains"),
    capturable=True,
)
class ERDG(ERM):
    """Aligns the features' domains and, by classifiers of each domain, what the features say of the class.

    Beside a discriminator that the features work against, every domain has two classifiers: `c_model` learns it, and
    the features then help on all other domains; `cp_model` learns it while the features work against that.

    Departures from the paper, as in OoD-Bench: all these networks are linear, Adam replaces SGD and its schedule,
    cross-entropies are unweighted, and no loss is scaled down in the first epochs. From OoD-Bench: both phases share
    one forward, since no weight under the features moves between them; what has no gradient in a phase does not move
    (there, momentum moves it); domains are those of the examples, so that batches may differ in size.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.num_domains = num_domains
        self.discriminator = linear_heads(self.featurizer.n_outputs, 1, num_domains)
        self.c_model = linear_heads(self.featurizer.n_outputs, num_domains, num_classes)
        self.cp_model = linear_heads(self.featurizer.n_outputs, num_domains, num_classes)
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer with a learning rate for each kind of network."""
        h = self.hparams
        rates = {"discriminator": h["lr_d"], "c_model": h["lr_c"], "cp_model": h["lr_cp"]}
        groups = [
            {"params": child.parameters(), "lr": rates.get(name, h["lr"])}
            for name, child in self.named_children()
            if name != "network"  # featurizer and classifier once more
        ]
        return torch.optim.Adam(groups, weight_decay=h["weight_decay"])

    def mean_risk(self, logits: torch.Tensor, y: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """The mean over the domains' classifiers of their risk on the examples that `where` (N×D) gives each."""
        logits = logits.unflatten(1, (self.num_domains, -1)).mT
        losses = F.cross_entropy(logits, y[:, None].expand(where.shape), reduction="none")
        return ((losses * where).sum(0) / where.sum(0)).mean()

    def descend(self, loss: torch.Tensor) -> None:
        """One step of the optimizer for whatever the loss depends on."""
        self.optimizer.zero_grad()
        backward(loss)
        self.optimizer.step()

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """First the classifiers of the domains learn, then all other networks."""
        batches, h = Batches.of(minibatches, unlabeled), self.hparams
        y, domains = batches.y, batches.domains
        own = domains[:, None] == torch.arange(self.num_domains, device=domains.device)
        features = self.featurizer(batches.x)
        self.descend(self.mean_risk(self.c_model(features.detach()), y, own))

        helped = scale_gradient(features, h["lbd_c"])
        fixed = F.linear(helped, self.c_model.weight.detach(), self.c_model.bias.detach())
        disc_loss = F.cross_entropy(self.discriminator(reverse_gradient(features, h["lbd_d"])), domains)
        loss = (
            F.cross_entropy(self.classifier(features), y)
            + disc_loss
            + self.mean_risk(fixed, y, ~own)
            + self.mean_risk(self.cp_model(reverse_gradient(features, h["lbd_cp"])), y, own)
        )
        self.descend(loss)
        self.step += 1
        return {"loss": loss.detach(), "disc_loss": disc_loss.detach()}


@torch.no_grad()
def pull_within(module: nn.Module, centre: nn.Module, radius: float) -> None:
    """Moves a network's weights straight towards another's, as far as it takes to be within a Euclidean distance."""
    gaps = [own - its for own, its in zip(module.parameters(), centre.parameters(), strict=True)]
    distance = torch.stack([gap.square().sum() for gap in gaps]).sum().sqrt()
    share = (radius / distance).clamp(max=1.0)
    for own, its in zip(module.parameters(), centre.parameters(), strict=True):
        own.copy_(torch.lerp(its, own, share))


@register(
    space=Space(
        t_lambda=log_uniform(1e-2, 1e1, default=1.0),
        delta=uniform(0.1, 3.0, default=2.0),
        d_steps_per_g=choice(1, 2, 5, default=10),
        gda=choice(True, default=False),
        lr_d=log_uniform(10**-4.5, 10**-2.5, default=1e-3),
    ),
    paper="Zhang et al., 2021",
    needs=("domain labels",),
)
class Transfer(ERM):
    """Makes the risks of all domains equal under the worst head near the classifier.

    Each update minimises the risk, then the gap between the largest and the smallest risk of a domain under the
    adversarial head; this head then starts from the classifier and climbs the gap, within a distance of `delta`. With
    `gda` the optimizer is plain gradient descent, without momentum and weight decay, else it is the recipe's; that one
    moves the features by its momentum even where the gap has no slope.

    Departures from the paper: none known. From DomainBed: with `gda`, as in every draw, featurizer and classifier are
    trained (there the optimizer holds the adversarial head instead, and the model never learns); all domains go through
    the network in one forward, and so share the statistics of live batch norm; the head climbs on one forward of the
    featurizer, which does not move meanwhile; `weight_decay_d` and `beta1`, drawn there and read nowhere, do not exist.
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, num_domains: int, hparams: Mapping[str, Any]
    ) -> None:
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.adv_classifier = copy.deepcopy(self.classifier)
        self.adv_opt = torch.optim.SGD(self.adv_classifier.parameters(), lr=self.hparams["lr_d"])

    def make_optimizer(self) -> torch.optim.Optimizer:
        """A fresh optimizer of featurizer and classifier."""
        if self.hparams["gda"]:
            return torch.optim.SGD(self.network.parameters(), lr=self.hparams["lr"])
        return super().make_optimizer()

    def gap(self, features: torch.Tensor, batches: Batches) -> torch.Tensor:
        """The weighted difference of the domains' largest and smallest risk under the adversarial head."""
        losses = F.cross_entropy(self.adv_classifier(features), batches.y, reduction="none")
        risks = batches.mean(losses)
        return self.hparams["t_lambda"] * (risks.amax() - risks.amin())

    def update(self, minibatches: Minibatches, unlabeled: Any = None) -> Metrics:
        """A step down the risk, a step down the gap, and the adversarial head's steps up the gap."""
        batches = Batches.of(minibatches, unlabeled)
        metrics = super().update(batches)

        gap = self.gap(self.featurizer(batches.x), batches)
        self.optimizer.zero_grad()
        backward(gap)
        self.optimizer.step()

        self.adv_classifier.load_state_dict(self.classifier.state_dict())
        with torch.no_grad():
            features = self.featurizer(batches.x)
        for _ in range(self.hparams["d_steps_per_g"]):
            self.adv_opt.zero_grad()
            backward(-self.gap(features, batches))
            self.adv_opt.step()
            pull_within(self.adv_classifier, self.classifier, self.hparams["delta"])
        return metrics | {"gap": gap.detach()}
