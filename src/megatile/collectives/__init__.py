"""Collectives: topologies, decompositions of networks into rings, algorithms, planner."""
