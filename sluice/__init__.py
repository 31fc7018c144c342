"""The installed program: the command `sluice`, and in `app/` everything else.

The packages in `app/` are importable only in the program's own processes, so that they hide no others of these names.
"""
