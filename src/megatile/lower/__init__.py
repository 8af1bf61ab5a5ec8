"""Program × machine → lowered Program → Plan.

``lower(prog, *arrays_or_shapes, machine=…)`` gives a ``Lowered``: the Program after each of the named passes
(``steps``), where every tensor and tile lives (``homes``), and the ``plan``. In processing order:

* ``ir/passes``: the passes before the Program meets the machine;
* ``units.py``: whole numbers of the Program as expressions of the Plan;
* ``storage.py``: homes, the Plan tile, memory, level, slices and local part behind every name;
* ``streams.py``: levels, streams, and the frame in which statements are lowered;
* ``regions.py``: a region of a view as a block of its home, with origins put in and cut at its edges;
* ``commands.py``, ``loops.py``, ``collectives.py``, ``statements.py``: rules of statements;
* ``gathered.py``: views that scatter indices; ``messages.py``: puts as messages;
* ``elements.py``, ``nests.py``: elementwise code;
* ``phases.py``, ``flags.py``: regions of further levels, the flags between them, and regions inside an
  instance;
* ``residency.py``: slots, places, and how many versions of a tile fit;
* ``lowered.py``, ``calls.py``: what users call.
"""
