"""Damaged and hostile files for every reader: a reader returns, or raises a `UserError`.

python -m tests.fuzz                                          # all readers, 20,000 inputs each: the long run
python -m tests.fuzz params tmx --inputs 2000 --seed 7
python -m tests.fuzz params --input 1234                      # one input again, with its traceback
"""
