"""Jobs whose images are augmented: by position of the stream, on validation images never, streamed or resident."""

import numpy as np
import torch

from shiftbed.data import load
from shiftbed.training import batches as module
from shiftbed.training.augment import Augmentation, augment, augmentation_words
from shiftbed.training.device import Runtime
from shiftbed.training.pool import Pool, pool_of
from shiftbed.training.run import run_job
from shiftbed.training.store import LocalStore
from shiftbed.training.trainer import Trainer
from tests.conftest import SMALL_CROPS, augmented_job


def test_images_of_a_batch_are_changed_by_the_words_of_their_positions(tiny_colours):
    trainer = Trainer(augmented_job("ERM"))
    scheme = Augmentation(**SMALL_CROPS)
    for step in (0, 5, 70):
        made = trainer.data.batches(*trainer.data.step_inputs(step))
        parts = []
        for domain, stream in trainer.data.streams.items():
            images = load(tiny_colours)[domain].inputs[stream.take(4 * step, 4)]
            sizes = np.tile([20, 20], (4, 1))
            changes = scheme.draw(augmentation_words(stream.key, 4 * step, 4), sizes).to("cpu")
            parts.append(augment(torch.from_numpy(np.array(images)).permute(0, 3, 1, 2), changes))
        assert torch.allclose(made.x, torch.cat(parts), atol=1e-6)


def test_equal_images_of_two_steps_are_changed_differently(tiny_colours):
    trainer = Trainer(augmented_job("ERM"))
    first = trainer.data.batches(*trainer.data.step_inputs(0)).x
    again = trainer.data.batches(*trainer.data.step_inputs(0)).x
    later = [trainer.data.batches(*trainer.data.step_inputs(step)).x for step in range(1, 10)]
    assert torch.equal(first, again)
    assert not any(torch.equal(first[0], x) for batch in later for x in batch)


def test_validation_and_test_images_are_never_augmented_unless_the_recipe_says_so(tiny_colours):
    trainer = Trainer(augmented_job("ERM"))
    places = np.arange(6)
    plain = Augmentation(**SMALL_CROPS).evaluation(np.tile([20, 20], (6, 1))).to("cpu")
    expected = augment(trainer.data.pool.inputs(torch.arange(6)), plain)
    assert torch.equal(trainer.data.evaluation_inputs(places), expected)
    assert trainer.evaluate() == trainer.evaluate()
    job = augmented_job("ERM")
    asked = Trainer(
        job.__class__(**{**vars(job), "recipe": job.recipe.model_copy(update={"augment_validation": True})})
    )
    validation = next(split for split in job.task.splits if split.role == "validation")
    test = next(split for split in job.task.splits if split.role == "test")
    assert asked._words(validation) is not None and asked._words(test) is None


def test_streamed_images_make_the_same_batches_as_resident_ones(tiny_colours, monkeypatch):
    resident = Trainer(augmented_job("ERM"))
    monkeypatch.setattr(module, "pool_of", streamed)
    from_host = Trainer(augmented_job("ERM"), Runtime())
    assert from_host.data.pool.resident is None
    for step in (0, 1, 2, 63, 64, 1):
        one, two = (trainer.data.batches(*trainer.data.step_inputs(step)) for trainer in (resident, from_host))
        assert torch.equal(one.x, two.x) and torch.equal(one.y, two.y)
        assert torch.equal(one.positions, two.positions)
    assert resident.evaluate()["splits"].keys() == from_host.evaluate()["splits"].keys()


def test_a_captured_step_gets_tensors_of_one_shape_also_where_images_differ_in_size(tiny_colours, monkeypatch):
    monkeypatch.setattr(module, "pool_of", ragged)
    data = Trainer(augmented_job("ERM")).data
    sizes = {data.pool.inputs(data._block_of(step).chosen[step]).shape for step in range(12)}
    assert len(sizes) > 1, "batches of images of different sizes are padded to different sizes"
    shapes = {tuple(tensor.shape for tensor in data.step_inputs(step)) for step in range(12)}
    assert len(shapes) == 1


def ragged(dataset: str, image_size: int | None, device: str) -> Pool:
    """The images on the host, each cut to a size of its own."""
    pool = pool_of(dataset, image_size, device)
    sides = np.random.default_rng(0).integers(10, 21, (len(pool.labels), 2))
    cut = iter(sides)
    inputs = tuple(
        [image[:height, :width] for image, (height, width) in zip(domain.inputs, cut, strict=False)]
        for domain in load(dataset).domains
    )
    return Pool(pool.labels, pool.starts, device, None, inputs, sides, sides)


def streamed(dataset: str, image_size: int | None, device: str) -> Pool:
    pool = pool_of(dataset, image_size, device)
    inputs = tuple(domain.inputs for domain in load(dataset).domains)
    return Pool(pool.labels, pool.starts, device, None, inputs, pool.original, pool.packed)


def test_an_augmented_job_learns_light_from_dark(tiny_colours, tmp_path):
    job = augmented_job("ERM", steps=60, every=60)
    run_job(job, LocalStore(tmp_path))
    trainer = Trainer(job)
    while trainer.step < 60:
        trainer.advance()
    assert trainer.evaluate()["splits"]["three/in"]["accuracy"] > 0.9
