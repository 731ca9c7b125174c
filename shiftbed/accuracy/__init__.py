"""Accuracy: how well a model will do on images that nobody has labelled."""
