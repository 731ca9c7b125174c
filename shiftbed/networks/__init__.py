"""Networks: featurizers by name and the heads on top of them."""

from shiftbed.networks.featurizers import NETWORKS, Classifier, Featurizer, SmallConv

__all__ = ["NETWORKS", "Classifier", "Featurizer", "SmallConv"]
