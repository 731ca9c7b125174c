"""Examples that lie in more than one domain: they make domains look nearer, and leak into tests."""

import hashlib

import numpy as np

from shiftbed.data import MultiDomainDataset


def shared_examples(dataset: MultiDomainDataset) -> np.ndarray:
    """How many examples of each domain (rows) lie, byte for byte as packed, in each other domain (columns).

    The diagonal counts examples that their own domain has more than once, the first of each left out.
    """
    hashes = [np.array([_hash(values) for values in domain.inputs]) for domain in dataset.domains]
    counts = np.array([[int(np.isin(one, other).sum()) for other in hashes] for one in hashes])
    np.fill_diagonal(counts, [len(one) - len(np.unique(one)) for one in hashes])
    return counts


def _hash(values: np.ndarray) -> bytes:
    array = np.ascontiguousarray(values)
    return hashlib.blake2b(str(array.shape).encode() + array.tobytes(), digest_size=16).hexdigest().encode()
