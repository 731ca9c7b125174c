"""What is learned from: domains, datasets and their cards."""

from shiftbed.data.dataset import DATASETS, Card, Domain, MultiDomainDataset, card, load

__all__ = ["DATASETS", "Card", "Domain", "MultiDomainDataset", "card", "load"]
