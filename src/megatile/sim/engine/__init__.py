"""The engine: every instance follows its instructions, every command takes its time. One loop for all plans.

An instance runs ahead on its own clock (``now``) until something holds up its issue. What only it uses is
arithmetic: such commands have all their times at once. A request for something that others use too (a server:
a link, a memory, an engine) goes into the time queue and is granted in order of time; a command whose times
are not known yet is a row of `commands`, counts the unfinished ones that it needs, and is ready when there
are none. The queue is asked only when no instance can go on: nothing can then ask for an earlier time, so
that what it grants is final. When the queue is empty, all are done or the state is a deadlock.

The functions work on rows of the tables that `state.py` declares: ``unit`` is a row, ``unit_id`` its number.
They are a subset of Python: integers, rows, ``if``, ``while``, ``for`` over a range. What runs is the same
without rows (`records/`), as Python (`plain.py`) or as machine code (`compiled.py`). Where a figure of the
machine is needed that is not in the tables yet they call Python (`ask` in `values`), which finds it for all
instances that will need one there; an instruction is never done twice.

From below: `values` of expressions; `events` in order of time, and lists of those who
wait; `recording` of commands; `instances` and their slots; `queues` and credits; `commands` in flight;
`accesses` and their conflicts; `completion`; `transfers` over links; `caches`; `dispatch` of commands that
waited; `bindings` of handles to messages; `messages` and other `operations` as they are issued; the `loop`.
Each imports only from those before it.
"""
