"""In which batches images are evaluated, for algorithms whose prediction depends on the batch."""

import numpy as np
import pytest
import torch

from shiftbed.algorithms import ERM, register
from shiftbed.data.arrays import write_arrays
from shiftbed.data.dataset import Card, Domain
from shiftbed.data.load import forget
from shiftbed.protocols import Fixed, LeaveOut
from shiftbed.training.job import make_job
from shiftbed.training.recipes import recipe
from shiftbed.training.trainer import Trainer

seen = []


class Around(ERM):
    """Answers with the first pixel of an image, and with the mean of its batch."""

    def predict(self, x):
        seen.append(x.clone())
        one, mean = x[:, :1, 0, 0], x.mean(0)[None, :1, 0, 0]
        return torch.cat([one, mean.expand_as(one)], 1)


class AroundToo(Around):
    def predict(self, x):
        return -super().predict(x)


@pytest.fixture
def by_class(tmp_path, monkeypatch):
    """A dataset whose domains begin with all of one class and end with all of the other, every image another one."""
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    labels, names = np.repeat([0, 1], 100), ("a", "b", "c")
    images = np.zeros((200, 8, 8, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(200)
    about = {"summary": "made", "licence": "none", "citation": "none", "source": "made"}
    counts = dict.fromkeys(names, 200)
    made = Card(name="ByClass", version=1, classes=("a", "b"), domains=counts, size_class="small", **about)
    write_arrays([Domain(name, images, labels) for name in names], made, tmp_path / "packs" / made.name)
    forget()
    seen.clear()
    yield np.arange(200, dtype=np.float32) / 255
    forget()


def around(cls, spec, *, trial=0):
    register()(cls)
    how = recipe("quick", "ByClass", steps=1, network="mlp-390")
    return Trainer(make_job("ByClass", cls.__name__, spec, how, trial=trial, overrides={"batch_size": 4}))


def first_pixels():
    found = [x[:, 0, 0, 0].numpy() for x in seen]
    seen.clear()
    return found


def test_who_looks_around_sees_no_batches_of_one_class_where_a_split_lies_in_the_order_of_the_dataset(by_class):
    spec = Fixed(train=("a",), test=("c",), validation=("b",))
    trainer = around(Around, spec)
    logits = trainer.logits()["c/all"].numpy()
    batches = first_pixels()
    assert np.array_equal(np.sort(np.concatenate(batches)), by_class), "every image once"
    for batch in batches[:3]:
        assert len(batch) == 64 and 16 <= (batch > 99.5 / 255).sum() <= 48, "of both classes"
    assert np.array_equal(logits[:, 0], by_class), "in the order of the split"
    means = {pixel: batch.mean() for batch in batches for pixel in batch}
    assert np.allclose(logits[:, 1], [means[pixel] for pixel in by_class], atol=1e-6)

    def same(other, *, step=0):
        other.step = step
        other.evaluate()
        of_test = first_pixels()[-len(batches) :]
        return all(np.array_equal(one, two) for one, two in zip(of_test, batches, strict=True))

    assert same(trainer) and same(trainer, step=1), "evaluations and kept outputs have the same batches"
    assert same(around(AroundToo, spec)) and not same(around(Around, spec, trial=1)), "so have all jobs of a cell"
    accuracy = around(Around, spec).evaluate()["splits"]["c/all"]["accuracy"]
    expected = (logits.argmax(1) == np.repeat([0, 1], 100)).mean()
    assert accuracy == pytest.approx(expected), "labels belong to their images"


def test_who_looks_around_sees_a_split_that_is_shuffled_already_in_its_own_order(by_class):
    trainer = around(Around, LeaveOut(("c",)))
    (expected,) = (by_class[split.indices] for split in trainer.job.task.of_role("test") if split.part == "in")
    assert not np.array_equal(expected, np.sort(expected))
    assert np.array_equal(trainer.logits()["c/in"][:, 0], expected)
    assert np.array_equal(np.concatenate(first_pixels()), expected)
