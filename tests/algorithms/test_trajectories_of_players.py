"""Ten updates of methods with several optimizers or gradients of their own, against the same in loops, in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import grad

from tests.algorithms import common
from tests.algorithms.loops import Loops, adam, assert_same_predictions, descend, domains_of, mean, whole


class ANDMask(Loops):
    def update(self, batches, step, rng):
        parameters = [*self.f.parameters(), *self.c.parameters()]
        gradients = [grad(risk, parameters) for risk in self.risks(batches)]
        for parameter, *of_domains in zip(parameters, *gradients, strict=True):
            mask = (mean([g.sign() for g in of_domains]).abs() >= 0.6).double()
            parameter.grad = mask * mean(of_domains) / (1e-10 + mask.mean())
        self.optimizer.step()


class MLDG(Loops):
    def update(self, batches, step, rng):
        order, parameters = rng.permutation(len(batches)), [*self.f.parameters(), *self.c.parameters()]
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for i, j in ((order[0], order[2]), (order[1], order[2])):
            inner = nn.Sequential(copy.deepcopy(self.f), copy.deepcopy(self.c))
            before = grad(F.cross_entropy(inner(batches[i][0]), batches[i][1]), inner.parameters())
            descend(F.cross_entropy(inner(batches[i][0]), batches[i][1]), adam([inner], self.h))
            after = grad(F.cross_entropy(inner(batches[j][0]), batches[j][1]), inner.parameters())
            total = [t + (b + self.h["mldg_beta"] * a) / 3 for t, b, a in zip(total, before, after, strict=True)]
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient
        self.optimizer.step()


class DANN(Loops):
    extra = ("discriminator",)

    def __init__(self, algorithm):
        super().__init__(algorithm)
        h = self.h
        of = {"betas": (h["beta1"], 0.9)}
        self.theirs = adam(self.others.values(), h, lr=h["lr_d"], weight_decay=h["weight_decay_d"], **of)
        self.optimizer = adam([self.f, self.c], h, lr=h["lr_g"], weight_decay=h["weight_decay_g"], **of)

    def seen(self, z, y):
        return z

    def weights(self, y):
        return torch.full((len(y),), 1 / len(y), dtype=torch.float64)

    def update(self, batches, step, rng):
        x, y = whole(batches)
        z = self.f(x)
        seen = self.seen(z, y)
        losses = F.cross_entropy(self.others["discriminator"](seen), domains_of(batches), reduction="none")
        (slopes,) = grad(losses.sum(), seen, create_graph=True)
        disc_loss = (self.weights(y) * losses).sum() + self.h["grad_penalty"] * slopes.square().sum(1).mean()
        turns = self.h["d_steps_per_g_step"]
        if (step + 1) % (1 + turns) < turns:
            descend(disc_loss, self.theirs)
        else:
            descend(F.cross_entropy(self.c(z), y) - self.h["lambda"] * disc_loss, self.optimizer)


class CDANN(DANN):
    extra = ("discriminator", "class_embeddings")

    def seen(self, z, y):
        return z + self.others["class_embeddings"](y)

    def weights(self, y):
        counts = torch.bincount(y)
        return 1 / (counts[y] * len(counts)).double()


class ERDG(Loops):
    extra = ("discriminator", "c_model", "cp_model")

    def __init__(self, algorithm):
        super().__init__(algorithm)
        self.optimizer = adam([self.f, self.c], self.h)
        rates = {"discriminator": "lr_d", "c_model": "lr_c", "cp_model": "lr_cp"}
        for name, module in self.others.items():
            self.optimizer.add_param_group({"params": module.parameters(), "lr": self.h[rates[name]]})

    def head(self, name, number, z):
        return self.others[name](z)[:, number * common.CLASSES : (number + 1) * common.CLASSES]

    def update(self, batches, step, rng):
        (x, y), d, numbers = whole(batches), domains_of(batches), range(len(batches))
        z = self.f(x).detach()
        descend(mean([F.cross_entropy(self.head("c_model", i, z[d == i]), y[d == i]) for i in numbers]), self.optimizer)
        # Each network's gradient apart: what a reversed or scaled gradient is to the features, it is not to the heads.
        z = self.f(x)
        disc_loss = F.cross_entropy(self.others["discriminator"](z), d)
        other = mean([F.cross_entropy(self.head("c_model", i, z[d != i]), y[d != i]) for i in numbers])
        own = mean([F.cross_entropy(self.head("cp_model", i, z[d == i]), y[d == i]) for i in numbers])
        weighted = -self.h["lbd_d"] * disc_loss + self.h["lbd_c"] * other - self.h["lbd_cp"] * own
        loss = F.cross_entropy(self.c(z), y)
        self.optimizer.zero_grad()
        for part, module in (
            (loss + weighted, self.f),
            (loss, self.c),
            (disc_loss, self.others["discriminator"]),
            (own, self.others["cp_model"]),
        ):
            part.backward(inputs=list(module.parameters()), retain_graph=True)
        self.optimizer.step()


class SagNet(Loops):
    def __init__(self, algorithm):
        self.h = algorithm.hparams
        self.f, self.c, self.s = (copy.deepcopy(getattr(algorithm, f"network_{part}")) for part in "fcs")
        self.of_f, self.of_c, self.of_s = (adam([module], self.h) for module in (self.f, self.c, self.s))

    def swapped(self, z, rng):
        content = (z - z.mean(1, keepdim=True)) / (z.var(1, keepdim=True) + 1e-5).sqrt()
        return content[rng.permutation(len(z))].detach() * (z.var(1, keepdim=True) + 1e-5).sqrt() + z.mean(
            1, keepdim=True
        )

    def update(self, batches, step, rng):
        x, y = whole(batches)
        z = self.f(x)
        m, v = z.mean(1, keepdim=True), z.var(1, keepdim=True)
        share, partner = torch.from_numpy(rng.random((len(z), 1))), rng.permutation(len(z))
        new_m, new_v = (share * own + (1 - share) * own[partner] for own in (m, v))
        mixed = (z - m) / (v + 1e-5).sqrt() * (new_v + 1e-5).sqrt() + new_m
        descend(F.cross_entropy(self.c(mixed), y), self.of_f, self.of_c)
        descend(F.cross_entropy(self.s(self.swapped(self.f(x), rng)), y), self.of_s)
        uncertain = -self.s(self.swapped(self.f(x), rng)).log_softmax(1).mean()
        descend(self.h["sag_w_adv"] * uncertain, self.of_f)


class ADRMX(Loops):
    def __init__(self, algorithm):
        self.h, self.a = algorithm.hparams, copy.deepcopy(algorithm)
        children = dict(self.a.named_children())
        discriminator = children.pop("discriminator")
        self.theirs, self.optimizer = (
            adam(modules, self.h, betas=(0.5, 0.9)) for modules in ([discriminator], [nn.ModuleList(children.values())])
        )

    def contrast(self, z, y):
        z, rows = F.normalize(z), []
        for i in range(len(y)):
            pull = {j: 0.5 * torch.exp(z[i] @ z[j] / 0.07) for j in range(len(y)) if j != i}
            logs = [torch.log(pull[j] / (sum(pull.values()) + 1e-5) + 1e-5) for j in pull if y[i] == y[j]]
            rows += [mean(logs)] if logs else []
        return -sum(rows) / (len(rows) + 1)

    def update(self, batches, step, rng):
        (x, y), d, a = whole(batches), domains_of(batches), self.a
        label, domain = a.featurizer_label(x), a.featurizer_domain(x)
        invariant = label - domain
        disc_loss = F.cross_entropy(a.discriminator(invariant), d)
        if (step + 1) % 3 < 2:
            descend(disc_loss, self.theirs)
            return
        order, remix = rng.random(len(y)), 0
        for number in range(common.CLASSES):
            one, two = sorted((i for i in range(len(y)) if y[i] == number), key=lambda i: -order[i])[:2]
            remix += F.cross_entropy(a.classifier_label_1(invariant[one] + domain[two]), y[one]) / common.CLASSES
        loss = F.cross_entropy(a.classifier_label_1(label), y) + F.cross_entropy(a.classifier_label_2(invariant), y)
        loss += F.cross_entropy(a.classifier_domain(domain), d) + remix - 0.75 * disc_loss
        descend(loss + self.contrast(label, y) + self.contrast(invariant, y), self.optimizer)

    def predict(self, x):
        return self.a.network(x)


EVERYONE = {
    ANDMask: {"tau": 0.6},
    MLDG: {"n_meta_test": 1, "weight_decay": 0.01},
    DANN: {"grad_penalty": 0.5, "weight_decay_d": 0.01, "d_steps_per_g_step": 2},
    CDANN: {"grad_penalty": 0.5, "weight_decay_d": 0.01, "d_steps_per_g_step": 2},
    ERDG: {},
    SagNet: {},
    ADRMX: {},
}


@pytest.mark.parametrize("loops", EVERYONE, ids=lambda loops: loops.__name__)
def test_ten_updates_are_those_of_the_loops(loops):
    assert_same_predictions(loops, EVERYONE[loops])
