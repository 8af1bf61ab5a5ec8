"""What several files of tests/language/common share."""

from __future__ import annotations


def loops(n, start=0, *, step=1):
    total, seen = start, []
    for i in range(0, n, step):
        if i == 3:
            continue
        if i > 7:
            break
        seen.append(i)
        total += i
    while total > 20:
        total -= 6
        if total < 10 or not seen:
            break
    return total, seen


OUTSIDE = [3, 1, 2]
