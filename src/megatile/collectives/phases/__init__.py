"""Building blocks of algorithms: each phase works on a party and on blocks, at any level of a hierarchy."""
