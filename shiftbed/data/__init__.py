"""What is learned from: domains, datasets and their cards."""

from shiftbed.data.dataset import DATASETS, Card, Domain, MultiDomainDataset
from shiftbed.data.load import card, example_names, load

__all__ = ["DATASETS", "Card", "Domain", "MultiDomainDataset", "card", "example_names", "load"]
