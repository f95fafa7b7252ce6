"""Estimates of differences between cells, their noise, and simultaneous intervals."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
