"""Programs as TileLang kernels; of several devices, with TileScale's words between ranks."""
