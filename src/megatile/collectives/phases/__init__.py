"""Building blocks of algorithms: each phase works on a group and on blocks, at any level of a hierarchy."""
