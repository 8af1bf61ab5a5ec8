"""What several files of tests/lowering/passes share."""

import megatile as mt

H100, CLUSTER = mt.machine("dgx-h100"), mt.machine("h100-cluster")
