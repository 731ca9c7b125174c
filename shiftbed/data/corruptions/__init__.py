"""Corruptions of images: the 19 of CIFAR-10-C and the 10 of CIFAR-10-C-bar, at five severities, *regenerated*.

The formulas and parameters are the published ones (Hendrycks and Dietterich 2019; Mintun et al. 2021), the random draws
and some libraries are not, so a set made here is called *regenerated* and is no copy of the published files. At 32
pixels the severities are CIFAR's; a length that CIFAR-10-C gives in pixels grows with the shorter side of the image.
"""

from shiftbed.data.corruptions.base import CORRUPTIONS, SEVERITIES, corrupt

__all__ = ["CORRUPTIONS", "SEVERITIES", "corrupt"]
