"""Benches: modules with ``run(torch)``, which says what was checked and gives the number of failures."""
