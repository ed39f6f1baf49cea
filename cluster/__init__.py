"""Work of several machines: many texts into packs, or the blocks of one; a question to all packs.

jobs.py         jobs, workers and machines, and what is told of them
queue.py        gives jobs out, and again where a worker or its machine is lost
reading.py      texts that are read into packs where the workers are
blocks.py       the blocks of one text, in a folder that the machines share
shelf.py        the packs of one machine
asking.py       a question to the packs of all machines
worker.py       the process on a machine, which does one job at a time
ray_start.py    a Ray that is here, or one for this command alone
ray_workers.py  the workers as actors of Ray
"""
