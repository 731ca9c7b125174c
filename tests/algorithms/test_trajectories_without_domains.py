"""Ten updates of methods that change images, features or weights of examples, against the same in loops, in float64."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shiftbed.algorithms.self_supervised import ORDERS
from tests.algorithms.common import PLAN
from tests.algorithms.loops import Loops, assert_same_predictions, domains_of, mean, whole


class SD(Loops):
    def loss(self, batches, step, rng):
        x, y = whole(batches)
        logits = self.predict(x)
        return F.cross_entropy(logits, y) + self.h["sd_reg"] * mean([value**2 for value in logits.flatten()])


class VNE(Loops):
    def loss(self, batches, step, rng):
        x, y = whole(batches)
        z = self.f(x)
        rows = torch.stack([row / row.norm() for row in z])
        spectrum = torch.linalg.eigvalsh(rows @ rows.T / len(rows))
        entropy = -sum(value * value.log() for value in spectrum if value > 1e-12)
        return F.cross_entropy(self.c(z), y) - self.h["vne_coefficient"] * entropy


class EQRM(Loops):
    restart = ("eqrm_burnin_iters", "eqrm_lr")

    def loss(self, batches, step, rng):
        risks = torch.stack(self.risks(batches))
        if step < 4:
            return risks.mean()
        at, count = risks.detach(), len(risks)
        deviation = at.std()
        h = 1.06 * deviation * count**-0.2
        low, high = at.min() - 9 * h, at.max() + 9 * h
        for _ in range(100):
            q = (low + high) / 2
            below = torch.special.ndtr((q - at) / h).mean() < self.h["eqrm_quantile"]
            low, high = (q, high) if below else (low, q)
        # Of the implicit equation: each risk moves its own kernel, and by the bandwidth all of them.
        kernels = torch.exp(-(((q - at) / h) ** 2) / 2)
        wider = 1.06 * count**-0.2 * (at - at.mean()) / ((count - 1) * deviation)
        slopes = (kernels + (kernels * (q - at) / h).sum() * wider) / kernels.sum()
        return (slopes * risks).sum()


class RCS(Loops):
    def loss(self, batches, step, rng):
        (x, y), d = whole(batches), domains_of(batches)
        z, m = self.f(x), len(y)
        distances = (z[:, None] - z).square().sum(2)
        apart = distances.detach()[~torch.eye(m, dtype=torch.bool)]
        sigma = self.memory.setdefault("sigma", apart.median())
        k, s = torch.exp(-distances / sigma) * (y[:, None] == y), (d[:, None] == d).double()
        alpha, epsilon = self.h["rcs_alpha"], self.h["rcs_epsilon"]
        h = alpha / m * (k * s).T @ (k * s) + (1 - alpha) / m**2 * (k.T @ k) * (s.T @ s)
        b = (k * s).mean(0)
        theta = torch.inverse(h + epsilon * torch.eye(m, dtype=torch.float64)) @ b
        weight = self.h["rcs_lambda"] * (2 / (1 + math.exp(-10 * step / PLAN.steps)) - 1)
        return F.cross_entropy(self.c(z), y) + weight * (2 * b @ theta - theta @ h @ theta - 1)


class FACT(Loops):
    def __init__(self, algorithm):
        super().__init__(algorithm)
        self.teacher = torch.nn.Sequential(copy.deepcopy(self.f), copy.deepcopy(self.c))

    def loss(self, batches, step, rng):
        x, y = whole(batches)
        shares, partners, mixed = rng.uniform(0, self.h["fact_alpha"], len(y)), rng.permutation(len(y)), []
        for i, image in enumerate(x.numpy()):
            own, other = np.fft.fft2(image), np.fft.fft2(x[partners[i]].numpy())
            amplitude = (1 - shares[i]) * np.abs(own) + shares[i] * np.abs(other)
            mixed.append(np.fft.ifft2(amplitude * np.exp(1j * np.angle(own))).real.clip(0, 1))
        views = x, torch.from_numpy(np.stack(mixed))
        risks = [F.cross_entropy(self.predict(view), y) for view in views]
        student = [(self.predict(view) / 10).softmax(1) for view in views]
        taught = [(self.teacher(view).detach() / 10).softmax(1) for view in views]
        divergences = [(t * (t / s).log()).sum(1).mean() for s, t in zip(student, taught[::-1], strict=True)]
        epoch = step / PLAN.steps_per_epoch
        return mean(risks) + self.h["fact_lambda"] * math.exp(-5 * (1 - min(epoch / 5, 1)) ** 2) * sum(divergences)

    def update(self, batches, step, rng):
        super().update(batches, step, rng)
        momentum = min(1 - 1 / (step + 2), 0.9995)
        pairs = zip(self.teacher.parameters(), [*self.f.parameters(), *self.c.parameters()], strict=True)
        for slow, fast in pairs:
            slow.data = momentum * slow.data + (1 - momentum) * fast.data


class JiGen(Loops):
    extra = ("jigsaw",)

    def loss(self, batches, step, rng):
        x, y = whole(batches)
        chosen, whole_ones = rng.integers(31, size=len(y)), rng.random(len(y)) < self.h["jigen_beta"]
        chosen[whole_ones] = 0
        shuffled, side = x.clone(), x.shape[2] // 3
        for i, order in enumerate(ORDERS[chosen]):
            for to, start in enumerate(order):
                (row, column), (from_row, from_column) = divmod(to, 3), divmod(int(start), 3)
                tile = x[i, :, from_row * side : (from_row + 1) * side, from_column * side : (from_column + 1) * side]
                shuffled[i, :, row * side : (row + 1) * side, column * side : (column + 1) * side] = tile
        z, chosen = self.f(shuffled), torch.from_numpy(chosen)
        risk = F.cross_entropy(self.c(z)[chosen == 0], y[chosen == 0])
        return risk + self.h["jigen_alpha"] * F.cross_entropy(self.others["jigsaw"](z), chosen)


class MixStyle(Loops):
    def loss(self, batches, step, rng):
        (x, y), sizes = whole(batches), [len(y) for _, y in batches]

        def mix(stage, inputs, maps):
            if rng.random() >= self.h["mixstyle_p"]:
                return maps
            shares, order = rng.beta(*[self.h["mixstyle_alpha"]] * 2, len(maps)), rng.permutation(len(sizes))
            partners = {}
            for here, there in zip(order, [order[-1], *order[:-1]], strict=True):
                for i, j in enumerate(rng.permutation(sizes[there])):
                    partners[sum(sizes[:here]) + i] = sum(sizes[:there]) + j
            means = maps.mean((2, 3), keepdim=True).detach()
            deviations = (maps.var((2, 3), keepdim=True) + 1e-6).sqrt().detach()
            out = []
            for i, (share, image) in enumerate(zip(shares, maps, strict=True)):
                mean, deviation = (share * s[i] + (1 - share) * s[partners[i]] for s in (means, deviations))
                out.append((image - means[i]) / deviations[i] * deviation + mean)
            return torch.stack(out)

        hooks = [self.f.stages[int(layer) - 1].register_forward_hook(mix) for layer in self.h["mixstyle_layers"]]
        loss = F.cross_entropy(self.predict(x), y)
        for hook in hooks:
            hook.remove()
        return loss


EVERYONE = {
    SD: {},
    VNE: {"vne_coefficient": 0.05},
    EQRM: {"eqrm_burnin_iters": 4, "eqrm_lr": 1e-3},
    RCS: {"rcs_lambda": 10.0},
    FACT: {},
    JiGen: {"jigen_beta": 0.5},
    MixStyle: {"mixstyle_layers": "12", "mixstyle_p": 0.7},
}


@pytest.mark.parametrize("loops", EVERYONE, ids=lambda loops: loops.__name__)
def test_ten_updates_are_those_of_the_loops(loops):
    assert_same_predictions(loops, EVERYONE[loops])
