"""Ranks on several computers, as torchrun starts them: one memory, kept equal over torch.distributed."""
