"""Which tokens the rows of a long prompt should read: kvarn's choice beside two others.

`watch` reads a text exactly and shows blocks of rows; `choices` judges what they might read.
"""
