"""What is learned from: domains, datasets and their cards."""

from shiftbed.data.dataset import DATASETS, Card, Domain, MultiDomainDataset
from shiftbed.data.load import card, load

__all__ = ["DATASETS", "Card", "Domain", "MultiDomainDataset", "card", "load"]
