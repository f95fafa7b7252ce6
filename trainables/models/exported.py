"""A trained network as one file that needs none of our code: torch's exported program, from pictures to embeddings.

`torch.export.load("network.pt2").module()` takes pictures (B, C, H, W) as evaluation shows them, B of any size, and gives raw
embeddings (B, d).
"""

from __future__ import annotations

import copy
import io

import torch
from torch import Tensor

from trainables.models.embedder import Embedder


def exported(network: Embedder, pictures: Tensor) -> bytes:
    """The network as it judges, on the CPU, in the type of its weights; `pictures` (2 or more, C, H, W) are as it is given them.

    Changes neither the network nor torch's random numbers. Raises whatever torch.export raises for what it cannot trace.
    """
    judge = copy.deepcopy(network).cpu().eval()
    judge.autocast = judge.micro_batch = None
    content = io.BytesIO()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        batch = ({0: torch.export.Dim.DYNAMIC},)  # refused where the network is tied to one number of pictures
        torch.export.save(torch.export.export(judge, (pictures.cpu(),), dynamic_shapes=batch), content)
    return content.getvalue()
