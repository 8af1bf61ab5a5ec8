"""Program × machine → lowered Program → Plan.

``lower(prog, *arrays_or_shapes, machine=…)`` gives a ``Lowered``: the Program after each of the named passes
(``steps``), where every tensor and tile lives (``homes``), and the ``plan``. In processing order:

* ``ir/passes``, ``passes``: the passes before and after the Program meets the machine; the Plan is written
  from the last one by the rest of this folder;
* ``levels.py``: the levels of the Plan, and how many instances each has;
* ``units.py``: whole numbers of the Program as expressions of the Plan;
* ``storage.py``: homes, the Plan tile, memory, level, slices and local part behind every name;
* ``streams.py``: streams, and the scope in which statements are written;
* ``regions.py``: a region as a block of its home, cut at its edges;
* ``commands.py``, ``loops.py``, ``collectives.py``, ``statements.py``: rules of statements;
* ``buffers.py``, ``library_plans.py``, ``inline.py``: collectives as the library's Plans do them;
* ``gathered.py``: parts whose indices are no run; ``messages.py``: puts as messages;
* ``elements.py``, ``elementwise.py``: elementwise code;
* ``phases.py``: regions of further levels, and those inside an instance;
* ``waits.py``, ``flags.py``: the flags between regions, put into the streams when these are written;
* ``residency.py``: slots, places, and how many versions of a tile fit;
* ``lowered.py``, ``calls.py``: what users call.
"""
