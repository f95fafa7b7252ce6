"""Export a trained network to one file that needs only torch.

`torch.export.load("network.pt2").module()` maps pictures (B, C, H, W) of evaluation to raw embeddings (B, d).
"""

import copy
import io

import torch
from torch import Tensor

from trainables.models.embedder import Embedder


def export_network(network: Embedder, pictures: Tensor) -> bytes:
    """Return the exported network in evaluation mode, on the CPU; `pictures` (2 or more, C, H, W) are an example input.

    Change neither the network nor torch's random state. Raise torch.export's errors.
    """
    network_copy = copy.deepcopy(network).cpu().eval()
    network_copy.autocast = network_copy.micro_batch = None
    content = io.BytesIO()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        batch = ({0: torch.export.Dim.DYNAMIC},)  # raises if the network fixes the batch size
        torch.export.save(torch.export.export(network_copy, (pictures.cpu(),), dynamic_shapes=batch), content)
    return content.getvalue()
