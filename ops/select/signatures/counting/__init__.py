"""Choices for many rows by counting: where AVX-512 counts bits of words.

What each query chooses follows from two numbers: the distance of its k-th nearest signature, and
how many signatures are nearer. So nothing is sorted, and only few tokens are looked at one by one:

    sample   a part of the signatures tells each query about how far its k-th nearest is (`limits`)
    count    of all signatures, how many are nearer than each of four distances there; where the
             k-th nearest is at none of them, the query counts again elsewhere (`limits`)
    mark     tokens that are nearer than the k-th, and those of its distance whose lots are low;
             those of the one or two next lots become candidates (`marks`)
    draw     as many of the candidates as are still missing (`draws`)

Counting and marking read a segment once and compare it with all queries of a block in turn: the
segment's bits are put side by side (`halves`), and adders of bits compare 512 signatures at a time
(`adders`), by what is kept for each query (`queries`). Each row's choice is that of `hamming`.
"""

from .rows import row_marks, scan_block, scratch_of

__all__ = ["row_marks", "scan_block", "scratch_of"]
