"""Ten updates of methods with one loss and one optimizer against the same methods in loops, in float64."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad

from tests.algorithms.loops import Loops, assert_same_predictions, domains_of, mean, whole


class IRM(Loops):
    restart = ("irm_penalty_anneal_iters", "lr")

    def loss(self, batches, step, rng):
        penalties = []
        for x, y in batches:
            factor = torch.ones((), dtype=torch.float64, requires_grad=True)
            halves = [F.cross_entropy(factor * self.predict(x)[k::2], y[k::2]) for k in (0, 1)]
            one, two = (grad(half, factor, create_graph=True)[0] for half in halves)
            penalties.append(one * two)
        weight = self.h["irm_lambda"] if step >= 4 else 1
        return mean(self.risks(batches)) + weight * mean(penalties)


class VREx(Loops):
    restart = ("vrex_penalty_anneal_iters", "lr")

    def loss(self, batches, step, rng):
        risks = self.risks(batches)
        weight = self.h["vrex_lambda"] if step >= 4 else 1
        return mean(risks) + weight * mean([(risk - mean(risks)) ** 2 for risk in risks])


class GroupDRO(Loops):
    def loss(self, batches, step, rng):
        risks = self.risks(batches)
        q = self.memory.get("q", [1.0] * len(risks))
        q = [old * math.exp(self.h["groupdro_eta"] * risk.item()) for old, risk in zip(q, risks, strict=True)]
        self.memory["q"] = [value / sum(q) for value in q]
        return sum(share * risk for share, risk in zip(self.memory["q"], risks, strict=True))


def coral(one, two):
    return (one.mean(0) - two.mean(0)).square().mean() + (one.T.cov() - two.T.cov()).square().mean()


def mmd(one, two, powers=range(-3, 4)):
    def kernel(a, b):
        distances = (a[:, None] - b).square().sum(2)
        return sum(torch.exp(-(10.0**power) * distances).mean() for power in powers)

    return kernel(one, one) + kernel(two, two) - 2 * kernel(one, two)


class CORAL(Loops):
    distance = staticmethod(coral)

    def loss(self, batches, step, rng):
        features = [self.f(x) for x, _ in batches]
        penalty = mean([self.distance(*pair) for pair in itertools.combinations(features, 2)])
        return mean(self.risks(batches)) + self.h["mmd_gamma"] * penalty


class MMD(CORAL):
    distance = staticmethod(mmd)


class CausIRL_CORAL(CORAL):
    def loss(self, batches, step, rng):
        first, second = [], []
        for features in (self.f(x) for x, _ in batches):
            cut = rng.integers(0, len(features))
            first, second = [*first, *features[:cut]], [*second, *features[cut:]]
        compared = min(len(first), len(second)) > 1
        penalty = self.distance(torch.stack(first), torch.stack(second)) if compared else 0
        return mean(self.risks(batches)) + self.h["mmd_gamma"] * penalty


class CausIRL_MMD(CausIRL_CORAL):
    distance = staticmethod(mmd)


class RDM(Loops):
    restart = ("rdm_penalty_anneal_iters", "rdm_lr")

    def loss(self, batches, step, rng):
        samples = [F.cross_entropy(self.predict(x), y, reduction="none") for x, y in batches]
        worst, everyone = max(samples, key=lambda sample: sample.mean().item()), torch.cat(samples)
        risk = mean([sample.mean() for sample in samples])
        if step < 4:
            return risk
        distance = mmd(worst[:, None], everyone[:, None], powers=range(-4, 4))
        return risk + self.h["rdm_lambda"] * distance + self.h["variance_weight"] * (everyone.var() + worst.var())


class CAD(Loops):
    within_class = False

    def loss(self, batches, step, rng):
        (x, y), d = whole(batches), domains_of(batches)
        z = self.f(x)
        scores, rows = torch.exp(z @ z.T / self.h["temperature"]), []
        for i in range(len(y)):
            others = [j for j in range(len(y)) if j != i and (y[i] == y[j] or not self.within_class)]
            foreign = [j for j in others if d[i] != d[j]]
            if foreign and any(y[i] == y[j] for j in others):
                rows.append(-torch.log(scores[i, foreign].sum() / scores[i, others].sum()))
        return F.cross_entropy(self.c(z), y) + self.h["lmbda"] * self.h["temperature"] / 0.07 * mean(rows)


class CondCAD(CAD):
    within_class = True


class RSC(Loops):
    def loss(self, batches, step, rng):
        x, y = whole(batches)
        z, rows = self.f(x), torch.arange(len(y))
        logits = self.c(z)
        (slopes,) = grad(logits[rows, y].sum(), z, retain_graph=True)
        levels = [100 * (1 - self.h[f"rsc_{kind}_drop_factor"]) for kind in "fb"]
        kept = slopes < torch.from_numpy(np.percentile(slopes.numpy(), levels[0], axis=1))[:, None]
        drop = (logits.softmax(1) - self.c(z * kept).softmax(1)).detach()[rows, y]
        spared = drop < np.percentile(drop.numpy(), levels[1])
        return F.cross_entropy(self.c(z * (kept | spared[:, None])), y)


class IGA(Loops):
    def loss(self, batches, step, rng):
        risks, parameters = self.risks(batches), [*self.f.parameters(), *self.c.parameters()]
        gradients = [grad(risk, parameters, create_graph=True) for risk in risks]
        centre = [mean(of_domains) for of_domains in zip(*gradients, strict=True)]
        gaps = [(g - m).square().sum() for gs in gradients for g, m in zip(gs, centre, strict=True)]
        return mean(risks) + self.h["penalty"] * sum(gaps)


class Fishr(Loops):
    restart = ("penalty_anneal_iters", "lr")

    def loss(self, batches, step, rng):
        (all_x, all_y), ema, averages = whole(batches), self.h["ema"], []
        for number, (x, y) in enumerate(batches):
            losses = F.cross_entropy(self.predict(x), y, reduction="none")
            gradients = [grad(loss, self.c.parameters(), create_graph=True) for loss in losses]
            rows = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients])
            averages.append(ema * self.memory.get(number, 0) + (1 - ema) * rows.var(0, correction=0))
            self.memory[number] = averages[-1].detach()
        penalty = mean([((a - mean(averages)) / (1 - ema)).square().mean() for a in averages])
        return F.cross_entropy(self.predict(all_x), all_y) + (self.h["lambda"] if step >= 4 else 0) * penalty


class MTL(Loops):
    def beside(self, z, embedding):
        return self.c(torch.cat([z, embedding.expand_as(z)], 1))

    def loss(self, batches, step, rng):
        total = 0
        for number, (x, y) in enumerate(batches):
            z = self.f(x)
            embedding = 0.9 * z.mean(0) + 0.1 * self.memory.get(number, 0)
            self.memory[number] = embedding.detach()
            total += F.cross_entropy(self.beside(z, embedding), y)
        return total

    def predict(self, x):
        z = self.f(x)
        return self.beside(z, z.mean(0))


class ARM(Loops):
    extra = ("context_net",)

    def predict(self, x):
        contexts = self.others["context_net"](x).split(6)
        contexts = [context.mean(0).expand_as(context) for context in contexts]
        return self.c(self.f(torch.cat([x, torch.cat(contexts)], 1)))

    def loss(self, batches, step, rng):
        x, y = whole(batches)
        return F.cross_entropy(self.predict(x), y)


class Mixup(Loops):
    def loss(self, batches, step, rng):
        order, shares = rng.permutation(len(batches)), rng.beta(*[self.h["mixup_alpha"]] * 2, len(batches))
        losses = []
        for i, j, share in zip(order, np.roll(order, -1), shares, strict=True):
            (x1, y1), (x2, y2) = batches[i], batches[j]
            logits = self.predict(share * x1 + (1 - share) * x2)
            losses.append(share * F.cross_entropy(logits, y1) + (1 - share) * F.cross_entropy(logits, y2))
        return mean(losses)


EVERYONE = {
    IRM: {"irm_penalty_anneal_iters": 4},
    VREx: {"vrex_penalty_anneal_iters": 4},
    GroupDRO: {},
    CORAL: {},
    MMD: {},
    CausIRL_CORAL: {},
    CausIRL_MMD: {},
    RDM: {"rdm_penalty_anneal_iters": 4, "rdm_lr": 1e-3},
    CAD: {},
    CondCAD: {},
    RSC: {},
    IGA: {},
    Fishr: {"penalty_anneal_iters": 4},
    MTL: {"mtl_ema": 0.9},
    ARM: {"batch_size": 6},
    Mixup: {},
}


@pytest.mark.parametrize("loops", EVERYONE, ids=lambda loops: loops.__name__)
def test_ten_updates_are_those_of_the_loops(loops):
    assert_same_predictions(loops, EVERYONE[loops])
