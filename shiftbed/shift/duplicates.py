"""Examples that lie in more than one domain: they make domains look nearer, and leak into tests."""

import numpy as np

from shiftbed.data import MultiDomainDataset
from shiftbed.hashing import array_hash


def shared_examples(dataset: MultiDomainDataset) -> np.ndarray:
    """How many examples of each domain (rows) lie, byte for byte as packed, in each other domain (columns).

    The diagonal counts examples that their own domain has more than once, the first of each left out.
    """
    hashes = [np.array([array_hash(values).hex() for values in domain.inputs]) for domain in dataset.domains]
    counts = np.array([[int(np.isin(one, other).sum()) for other in hashes] for one in hashes])
    np.fill_diagonal(counts, [len(one) - len(np.unique(one)) for one in hashes])
    return counts


def note_of_shared(dataset: MultiDomainDataset, counts: np.ndarray) -> list[str]:
    """A sentence on the domain that has most of its examples in another, if one has any there."""
    between = counts - np.diag(np.diag(counts))
    if not between.any():
        return []
    one, other = (dataset.domains[int(place)].name for place in np.unravel_index(between.argmax(), between.shape))
    most = int(between.max())
    shared = "1 example lies" if most == 1 else f"{most:,} examples lie"
    return [
        f"Of '{one}', {shared} in '{other}' too, byte for byte: domains that share examples look nearer than they are."
    ]
