"""`trivium studio`: a web page on which a beginner trains a model.

The page only builds command lines and starts `trivium pretrain` or `trivium finetune` in a process
of its own. Everything that it shows is read from the files of the run folder.
"""
