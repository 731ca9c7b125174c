"""What is learned from: domains, datasets and their cards."""

from shiftbed.data.dataset import DATASETS, Card, Domain, MultiDomainDataset
from shiftbed.data.load import card, card_if_known, example_names, load

__all__ = ["DATASETS", "Card", "Domain", "MultiDomainDataset", "card", "card_if_known", "example_names", "load"]
