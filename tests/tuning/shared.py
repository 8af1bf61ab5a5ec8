"""What several files of tests/tuning share."""

import sqlite3
from functools import partial

from tests.tuning.factories import gemm

FAST = {"machine": "dgx-h100", "progress": False}
SIZES = ["40 KiB", "100 KiB", "228 KiB"]


def kept(store):
    try:
        with sqlite3.connect(store) as link:
            return dict(link.execute("SELECT key, value FROM results"))
    except sqlite3.Error:
        return {}


PRODUCT = partial(gemm, 512, 512, 512, 64, 64, 64)
