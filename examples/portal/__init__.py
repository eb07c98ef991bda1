"""A portal that enrols learners into courses: the example that `echomq demo` runs while it kills the workers.

seats        the effect: a seat in a course, taken once, in SQLite; and the audit of it
roster       the input: a CSV file, row by row, good rows and bad ones
worker       a worker process: takes jobs from the queue and enrols
naive        the same work over a plain list, which loses what its consumer held when it died
journal      what a process notes about its work, so that somebody else can tell what it held when it was killed
leash        ends a process when its parent has gone
make_roster  makes roster.csv
"""
