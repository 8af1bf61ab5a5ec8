"""The Plan: what every unit does, in order. Pure data, made by producers and read by evaluators that do not
know each other: ``check``, ``execute`` (real data), ``simulate`` (time), ``price`` (bounds) and ``launch``
(real processes).

Start reading in ``model.py``.
"""

import megatile.plan.parse
import megatile.plan.serial
import megatile.plan.text  # noqa: F401  (they fill model.FORMS)
