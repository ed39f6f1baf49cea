"""A pack as one file: an uncompressed tar archive, written by `pack export`.

    member   header    512  ustar: name, size in octal, type "0"
             content     n  padded with zeros to a multiple of 512
    end      zeros          1,024, and as many as make the file a multiple of 10,240

The members, in this order:

    pack.json, commits, tokens, tail-1     commits: one superblock, of commit 0
    centre                                 where pack.json names one
    checkpoints, states                    where commits names some; they are in its order
    layer-000.kv …                         n slots each, n = full segments of the commit
    index-NAME …                           as many slots as `tokens` has records of the column

A size of 8 GiB or more does not fit in a header. Such a member begins with two more blocks (pax):

             header    512  type "x", size m
             record      m  "{m} size={n}\n", padded to 512; the next header's size is 0

An exported pack stands alone and has no gaps: segments of parents are copied into it, segments that
no commit needs are left out, and every segment is checked against its digest. So `pack.json` and
the commit determine the whole archive, and import accepts nothing else.
"""

from .exporting import export_pack as export_pack
from .importing import clear_imports as clear_imports
from .importing import import_pack as import_pack
