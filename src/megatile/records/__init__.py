"""Tables of records in one array of integers, and functions over them that run as Python or as machine code.

`rows` declares records, `arena` holds their tables, `desugar` makes of functions over records integer
arithmetic on the array, `functions` runs that as Python, and `machine_code` translates it by LLVM. Nothing
here knows what the tables are about; the engine of `sim` is written in this.
"""
