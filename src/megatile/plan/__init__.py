"""The Plan: what every unit does, in order. Pure data, made by producers and read by evaluators that do not
know each other: ``check``, ``execute`` (real data), ``simulate`` (time), ``price`` (bounds) and ``launch``
(real processes).

Start reading in ``model.py``.
"""
